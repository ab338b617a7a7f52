// Unpacks Plotly, which the page contains as gzip in base64.
async function unpack() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").text), each => each.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.text = await new Response(plain).text();
  document.head.append(script);
}

unpack().then(() => draw(JSON.parse(document.getElementById("data").text)));
