"use strict";
// Draws the figures that the page carries as data. Colours are named in the data ("var:series-0") and read from the
// style sheet, so that a change of the system's theme only needs another look at it.
(() => {
  const figures = JSON.parse(document.getElementById("report-data").textContent);
  const config = { displaylogo: false, responsive: true, displayModeBar: false };

  function coloured(value, css) {
    if (typeof value === "string" && value.startsWith("var:")) {
      return css.getPropertyValue("--" + value.slice(4)).trim();
    }
    if (Array.isArray(value)) return value.map((entry) => coloured(entry, css));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, coloured(entry, css)]));
    }
    return value;
  }

  function styled(layout, css) {
    const ink = (name) => css.getPropertyValue("--" + name).trim();
    const out = coloured(layout, css);
    for (const key of Object.keys(out)) {
      if (!/^[xy]axis\d*$/.test(key)) continue;
      const axis = out[key];
      if (axis.title) axis.title = { ...axis.title, font: { size: 12, color: ink("muted") }, standoff: 8 };
      out[key] = { gridcolor: ink("grid"), linecolor: ink("line"), zeroline: false, automargin: true, nticks: 7,
        tickfont: { size: 12, color: ink("muted") }, showgrid: key.startsWith("y"), ...axis };
    }
    return { margin: { l: 56, r: 12, t: 34, b: 42 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: css.fontFamily, size: 13, color: ink("text") }, hovermode: "x unified",
      hoverlabel: { bgcolor: ink("card"), bordercolor: ink("line"), font: { size: 12.5, color: ink("text") } },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", xanchor: "left", yref: "paper",
        font: { size: 12, color: ink("text") } },
      ...out };
  }

  function draw() {
    const css = getComputedStyle(document.documentElement);
    const body = getComputedStyle(document.body);
    const look = { getPropertyValue: (name) => css.getPropertyValue(name), fontFamily: body.fontFamily };
    for (const figure of figures) {
      const place = document.getElementById("plot-" + figure.id);
      const layout = { ...styled(figure.layout, look), height: figure.height };
      Plotly.react(place, coloured(figure.traces, look), layout, config);
    }
  }

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
