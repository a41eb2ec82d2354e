// Draw the charts of a step with dygraphs: the mean as a line, from the least to the greatest rank as its band.
"use strict";

(() => {
  const place = document.querySelector(".charts");
  const colours = getComputedStyle(document.documentElement);
  const colour = (name) => colours.getPropertyValue(name).trim();
  const number = (value) => (value === null ? "–" : value.toLocaleString("en", { maximumSignificantDigits: 3 }));

  // Its legend sets styles inline, which the pages' policy forbids; the caption above each chart does that work.
  Dygraph.PLUGINS = Dygraph.PLUGINS.filter((plugin) => plugin !== Dygraph.Plugins.Legend);

  const { mousedown, dblclick } = Dygraph.Interaction.defaultModel;

  for (const chart of JSON.parse(document.getElementById("charts-data").textContent)) {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const name = document.createElement("b");
    name.textContent = chart.unit ? `${chart.name} (${chart.unit})` : chart.name;
    const legend = document.createElement("output");
    caption.append(name, legend);
    const plot = document.createElement("div");
    plot.className = "plot";
    figure.append(caption, plot);
    place.append(figure);

    const at = new Map(chart.rows.map(([step, ...band]) => [step, band]));
    const say = (step) => {
      const band = at.get(step);
      const spread = band && band[0] !== band[2] ? ` (${number(band[0])} to ${number(band[2])})` : "";
      legend.textContent = band
        ? `step ${step}: ${number(band[1])}${spread}`
        : `step ${step}: ${chart.nan.includes(step) ? "not finite" : "–"}`;
    };
    say(chart.step);
    if (chart.rows.length === 0) {
      plot.textContent = "no values around the step";
      continue;
    }

    const low = Math.min(...chart.rows.map((row) => row[1]));
    const high = Math.max(...chart.rows.map((row) => row[3]));
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    new Dygraph(
      plot,
      [...at, ...chart.nan.filter((step) => !at.has(step)).map((step) => [step, [null, null, null]])].sort(
        ([one], [other]) => one - other,
      ),
      {
        customBars: true,
        labels: ["step", "value"],
        colors: [colour("--accent")],
        fillAlpha: 0.18,
        strokeWidth: 1.6,
        axisLineColor: colour("--line"),
        gridLineColor: colour("--soft"),
        dateWindow: chart.range,
        valueRange: [low - margin, high + margin],
        xRangePad: 4,
        axes: {
          x: { pixelsPerLabel: 60, axisLabelFormatter: (step) => (Number.isInteger(step) ? String(step) : "") },
          y: { axisLabelWidth: 52, axisLabelFormatter: number, pixelsPerLabel: 28 },
        },
        interactionModel: { mousedown, dblclick, willDestroyContextMyself: true }, // no touch: the page must scroll
        highlightCallback: (_, step) => say(step),
        unhighlightCallback: () => say(chart.step),
        underlayCallback: (canvas, area, graph) => {
          if (chart.usual) {
            const [low, high] = chart.usual.map((value) => graph.toDomYCoord(value));
            canvas.fillStyle = colour("--soft");
            canvas.fillRect(area.x, high, area.w, Math.max(low - high, 1));
          }
          const line = (step, tone) => {
            canvas.fillStyle = tone;
            canvas.fillRect(graph.toDomXCoord(step) - 1, area.y, 2, area.h);
          };
          line(chart.step, colour("--mark"));
          chart.nan.forEach((step) => line(step, colour("--bad")));
        },
      },
    );
  }
})();
