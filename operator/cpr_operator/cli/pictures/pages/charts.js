"use strict";
// Draws charts in the page's own colours, light or dark, and again when these change.
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
let shown = [];

function coloured(layout) {
  const axis = { gridcolor: colour("--grid"), linecolor: colour("--mark"), zerolinecolor: colour("--mark") };
  return {
    ...layout,
    xaxis: { ...axis, ...layout.xaxis },
    yaxis: { ...axis, ...layout.yaxis },
    shapes: layout.shapes.map(each => ({ ...each, line: { color: colour("--mark"), ...each.line } })),
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), size: 12 },
    hoverlabel: { bgcolor: colour("--card"), font: { color: colour("--ink") } },
    colorway: ["#3d8bd9", "#e0702e", "#2fa36b", "#c65bb0", "#a58a1f"],
    margin: { l: 8, r: 12, t: 8, b: 8 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
  };
}

function draw(charts) {
  shown = charts;
  return Promise.all(charts.map(each => Plotly.react(each.id, each.data, coloured(each.layout), config)));
}

dark.addEventListener("change", () => draw(shown));
