#!/usr/bin/env bash
# tract takes a ConstantOfShape without the attribute `value` for zeros of float64.
#
# Versions: tract 0.23.9, onnx 1.23.2, onnxruntime 1.32.0, Python 3.11, Linux x86-64.
# Expected: ONNX (operators, ConstantOfShape): "If attribute 'value' is not specified, the tensor in the output ...
#   defaults to the value of 0, datatype float32". onnxruntime adds such zeros to a float32 tensor.
# Seen: a model that also states the zeros' type does not load, because tract cannot unify F32 with F64. With a stated
#   value of float32 it does. torch.onnx writes the type, and no value.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tract==0.23.9 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" >"$folder/seen" <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
import tract
from onnx import TensorProto, helper

given = np.array([[1.0, 2.0]], np.float32)
for name, stated in (("default", {}), ("stated", {"value": helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])})):
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"], **stated),
        helper.make_node("Add", ["x", "zeros"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(each, TensorProto.FLOAT, [1, 2]) for each in "xy")
    zeros = helper.make_tensor_value_info("zeros", TensorProto.FLOAT, [1, 2])  # as torch.onnx writes it
    graph = helper.make_graph(nodes, "g", [x], [y], value_info=[zeros])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = f"{sys.argv[1]}/{name}.onnx"
    onnx.save(model, path)
    print(f"{name}, onnxruntime:", onnxruntime.InferenceSession(path).run(None, {"x": given})[0].tolist())
    try:
        (found,) = tract.onnx().load(path).into_model().into_runnable().run([given])
        print(f"{name}, tract:", found.to_numpy().tolist())
    except Exception as error:
        causes = [line.split(": ", 1)[-1] for line in str(error).splitlines() if "unify" in line and "at " not in line]
        print(f"{name}, tract:", next(each for each in causes if each.startswith("Impossible")))
PYTHON
diff - "$folder/seen" <<'SEEN'
default, onnxruntime: [[1.0, 2.0]]
default, tract: Impossible to unify F32 with F64.
stated, onnxruntime: [[1.0, 2.0]]
stated, tract: [[1.0, 2.0]]
SEEN
echo "as seen"
