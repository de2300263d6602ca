// Draws every figure in the colours that page.css has for this light, and again when the light changes.
"use strict";
const dark = matchMedia("(prefers-color-scheme: dark)");

function coloured(text) {
  const style = getComputedStyle(document.documentElement);
  return JSON.parse(text.replace(/"var\((--[\w-]+)\)"/g, (_, name) => JSON.stringify(style.getPropertyValue(name).trim())));
}

function draw(figure) {
  const plot = coloured(figure.querySelector("script").textContent);
  plot.layout.font.family = getComputedStyle(document.body).fontFamily;
  return Plotly.react(figure.querySelector(".plot"), plot.data, plot.layout, { responsive: true, displayModeBar: false });
}

async function drawAll() {
  await Promise.all(Array.from(document.querySelectorAll("figure"), draw));
  document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
}

let drawing = drawAll();
dark.addEventListener("change", () => { drawing = drawing.then(drawAll); });
