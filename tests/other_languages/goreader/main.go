// Command goreader prints the vectors of ids in a dynamic table of a model that `cprjob export` wrote.
//
//	goreader FOLDER TABLE < ids
//
// It reads an id a line, and prints the bits of the values of its vector, in hexadecimal. It follows docs/hashing.md and
// docs/serving.md, and shares no code with cprjob_serving.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sort"

	"github.com/cespare/xxhash/v2"
)

// A fallback is the vector of a key without a row.
type fallback struct {
	Kind      string `json:"kind"`
	Seed      uint64 `json:"seed"`
	Table     uint64 `json:"table"`
	Precision string `json:"precision"`
}

// A table is one of transform.json.
type table struct {
	Name    string    `json:"name"`
	File    string    `json:"file"`
	Rows    int       `json:"rows"`
	Dim     int       `json:"dim"`
	IDs     string    `json:"ids"`
	Seed    uint64    `json:"seed"`
	Default *fallback `json:"default"`
}

// A model is the content of transform.json that a lookup needs.
type model struct {
	Version int     `json:"version"`
	Tables  []table `json:"tables"`
}

// Rows are the vectors of ascending keys: 8 bytes a key, 4 bytes a value.
type rows struct {
	keys, weight []byte
	dim          int
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: goreader FOLDER TABLE < ids")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "goreader:", err)
		os.Exit(1)
	}
}

func run(folder, name string) error {
	its, err := tableOf(folder, name)
	if err != nil {
		return err
	}
	found, err := readRows(filepath.Join(folder, filepath.FromSlash(its.File)), its.Dim)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	ids := bufio.NewScanner(os.Stdin)
	for ids.Scan() {
		for _, value := range found.vector(keyOf(ids.Bytes(), its.Seed), its) {
			fmt.Fprintf(out, "%08x ", math.Float32bits(value))
		}
		fmt.Fprintln(out)
	}
	return ids.Err()
}

// tableOf returns a dynamic table of a model.
func tableOf(folder, name string) (table, error) {
	text, err := os.ReadFile(filepath.Join(folder, "transform.json"))
	if err != nil {
		return table{}, err
	}
	var of model
	if err := json.Unmarshal(text, &of); err != nil {
		return table{}, err
	}
	if of.Version != 3 {
		return table{}, fmt.Errorf("transform.json is of version %d, not 3", of.Version)
	}
	for _, each := range of.Tables {
		if each.Name == name && each.IDs == "Dynamic" && each.Default != nil {
			return each, nil
		}
	}
	return table{}, fmt.Errorf("no dynamic table %q", name)
}

// readRows reads the file of a table.
func readRows(path string, dim int) (rows, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return rows{}, err
	}
	if len(data) < 8 || binary.LittleEndian.Uint64(data) > uint64(len(data)-8) {
		return rows{}, errors.New("no safetensors file")
	}
	end := 8 + binary.LittleEndian.Uint64(data)
	var header map[string]struct {
		Dtype   string    `json:"dtype"`
		Shape   []int     `json:"shape"`
		Offsets [2]uint64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(data[8:end], &header); err != nil {
		return rows{}, err
	}
	keys, weight, content := header["keys"], header["weight"], data[end:]
	if keys.Dtype != "U64" || weight.Dtype != "F32" || len(weight.Shape) != 2 || weight.Shape[1] != dim {
		return rows{}, fmt.Errorf("unexpected tensors: %+v", header)
	}
	return rows{
		content[keys.Offsets[0]:keys.Offsets[1]],
		content[weight.Offsets[0]:weight.Offsets[1]],
		dim,
	}, nil
}

// keyOf returns the key of an id.
func keyOf(id []byte, seed uint64) uint64 {
	digest := xxhash.NewWithSeed(seed)
	digest.Write(id) // never fails
	return digest.Sum64()
}

// vector returns the vector of a key.
func (found rows) vector(key uint64, its table) []float32 {
	count := len(found.keys) / 8
	place := sort.Search(count, func(i int) bool { return found.key(i) >= key })
	vector := make([]float32, found.dim)
	if place == count || found.key(place) != key {
		if its.Default.Kind == "Random" {
			its.Default.fill(vector, key, its.Rows)
		}
		return vector
	}
	for i := range vector {
		vector[i] = math.Float32frombits(binary.LittleEndian.Uint32(found.weight[4*(place*found.dim+i):]))
	}
	return vector
}

func (found rows) key(i int) uint64 { return binary.LittleEndian.Uint64(found.keys[8*i:]) }

const golden = 0x9E3779B97F4A7C15

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// fill sets a vector to the first values of a key.
func (of fallback) fill(vector []float32, key uint64, rows int) {
	scale := float32(math.Sqrt(1/float64(rows)) / (1 << 23))
	ofTable := mix(mix(of.Seed + (of.Table+1)*golden))
	ofKey := mix(ofTable + key*golden)
	for i := range vector {
		word := mix(ofKey + uint64(i/2+1)*golden)
		half := int32(uint32(word >> (32 * (i % 2))))
		vector[i] = float32(half>>8) * scale
		if of.Precision == "bf16" {
			vector[i] = rounded(vector[i])
		}
	}
}

// rounded returns the nearest bfloat16 of a finite value.
func rounded(value float32) float32 {
	bits := math.Float32bits(value)
	return math.Float32frombits((bits + 0x7FFF + bits>>16&1) &^ 0xFFFF)
}
