// Curves over a common axis, drawn by uPlot.

import uPlot from "./uPlot.esm.js";
import { make } from "./dom.js";
import { isKnown, short } from "./numbers.js";
import { lineStyle } from "./palette.js";

const HEIGHT = 220;

// A chart that `show` draws: curves are [{name, x, y, error, low, high, level}] with the same x. `error`, optional: a
// half-width; `low` and `high` instead: both ends. `level`: a value that stays, drawn as a thin line.
export class CurveChart {
  constructor({ label, unit = "", xLabel = "decisions", range = null, height = HEIGHT }) {
    this.label = label;
    this.unit = unit;
    this.xLabel = xLabel;
    this.range = range;
    this.height = height;
    this.hidden = new Set();
    this.plot = null;
    this.curves = [];
    this.place = make("div", { class: "plot" });
    this.legend = make("ul", { class: "legend" });
    this.element = make("figure", { class: "chart" }, make("figcaption", {}, label), this.place, this.legend);
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.place);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.draw();
    this.dark.addEventListener("change", this.redraw);
  }

  show(curves) {
    this.curves = curves;
    this.draw();
  }

  close() {
    this.observer.disconnect();
    this.dark.removeEventListener("change", this.redraw);
    this.plot?.destroy();
  }

  fit() {
    const width = this.place.clientWidth;
    if (!this.plot) this.draw();
    else if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
  }

  draw() {
    const width = this.place.clientWidth;
    this.plot?.destroy();
    this.plot = null;
    this.place.replaceChildren();
    const shown = this.curves.filter((curve) => curve.y.some(isKnown));
    this.place.classList.toggle("empty", shown.length === 0);
    if (shown.length === 0) {
      this.place.textContent = "nothing measured yet";
      this.place.removeAttribute("role");
      this.place.removeAttribute("aria-label");
      this.legend.replaceChildren();
      return;
    }
    this.place.setAttribute("role", "img");
    this.place.setAttribute(
      "aria-label",
      `${this.label}: ${shown
        .slice(0, 8)
        .map((curve) => `${curve.name} ${short(last(curve.y))}`)
        .join(", ")}`,
    );
    this.listNames(shown);
    if (width === 0) return;
    const style = getComputedStyle(document.documentElement);
    const line = style.getPropertyValue("--line").trim();
    const faint = style.getPropertyValue("--faint").trim();
    const series = [{ label: this.xLabel, value: (_, value) => short(value) }];
    const bands = [];
    const columns = [shown[0].x];
    shown.forEach((curve, number) => {
      const { colour, dash } = lineStyle(curve.style ?? number);
      const isShown = !this.hidden.has(curve.name);
      const alone = !curve.level && curve.y.filter(isKnown).length < 3;
      series.push({
        label: curve.name,
        stroke: colour,
        width: curve.level ? 1 : 2,
        dash: curve.level ? [4, 4] : dash,
        show: isShown,
        spanGaps: true,
        points: { show: alone, size: 6, fill: colour },
        value: (_, value) => short(value),
      });
      columns.push(curve.y);
      if (curve.error || curve.low) {
        const fill = `${colour}30`;
        bands.push({ series: [columns.length, columns.length + 1], fill });
        const end = (sign) =>
          curve.y.map((value, at) =>
            isKnown(value) && isKnown(curve.error[at]) ? value + sign * curve.error[at] : null,
          );
        for (const values of curve.low ? [curve.high, curve.low] : [end(1), end(-1)]) {
          series.push({ show: isShown, stroke: "transparent", spanGaps: true, points: { show: false } });
          columns.push(values);
        }
      }
    });
    const axis = {
      stroke: faint,
      grid: { stroke: line, width: 1 },
      ticks: { stroke: line, width: 1 },
      font: "12px system-ui, sans-serif",
    };
    this.plot = new uPlot(
      {
        width,
        height: this.height,
        series,
        bands,
        legend: { show: false },
        cursor: { y: false, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: this.range ? { range: this.range } : {} },
        axes: [
          {
            ...axis,
            values: (_, values) => values.map(short),
            size: 28,
            label: this.xLabel,
            labelSize: 18,
            labelFont: "12px system-ui, sans-serif",
          },
          {
            ...axis,
            values: (_, values) => values.map(short),
            size: 60,
            label: this.unit || undefined,
            labelSize: this.unit ? 18 : 0,
            labelFont: "12px system-ui, sans-serif",
          },
        ],
        hooks: { setCursor: [(plot) => this.tell(plot)] },
      },
      columns,
      this.place,
    );
  }

  // Names with their colours, each a button that hides its curve; under the mouse they show their values.
  listNames(shown) {
    this.values = new Map();
    this.legend.replaceChildren(
      ...shown.map((curve, number) => {
        const { colour, dash } = lineStyle(curve.style ?? number);
        const value = make("span", { class: "value" }, short(last(curve.y)));
        this.values.set(curve.name, [curve, value]);
        const mark = make("i", { class: dash.length || curve.level ? "dashed" : "" });
        mark.style.borderTopColor = colour;
        return make(
          "li",
          {},
          make(
            "button",
            {
              type: "button",
              "aria-pressed": String(!this.hidden.has(curve.name)),
              title: curve.meaning || null,
              onclick: () => {
                if (!this.hidden.delete(curve.name)) this.hidden.add(curve.name);
                this.draw();
              },
            },
            mark,
            `${curve.name} `,
            value,
          ),
        );
      }),
    );
  }

  tell(plot) {
    const at = plot.cursor.idx;
    for (const [curve, value] of this.values.values()) {
      value.textContent = short(isKnown(at) ? curve.y[at] : last(curve.y));
    }
  }
}

function last(values) {
  for (let at = values.length - 1; at >= 0; at -= 1) if (isKnown(values[at])) return values[at];
  return null;
}

// Curves of different runs on a common x: between their own points they are straight, and not known outside of them.
export function aligned(lines) {
  const x = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  return lines.map((line) => ({
    ...line,
    x,
    y: between(x, line.x, line.y),
    low: line.low && between(x, line.x, line.low),
    high: line.high && between(x, line.x, line.high),
  }));
}

function between(wanted, x, y) {
  const places = x.map((_, at) => at).filter((at) => isKnown(y[at]));
  let next = 0;
  return wanted.map((value) => {
    while (next < places.length && x[places[next]] < value) next += 1;
    if (next === places.length) return null;
    const right = places[next];
    if (x[right] === value) return y[right];
    if (next === 0) return null;
    const left = places[next - 1];
    return y[left] + ((y[right] - y[left]) * (value - x[left])) / (x[right] - x[left]);
  });
}
