// The spinning top: how strong the layers of the league are, and how many beat each other in circles there.

import { make, makeSvg, panel, playerLink } from "./dom.js";
import { percent, short } from "./numbers.js";

const WIDEST_PLAYER = 48; // pixels

export function create(element) {
  const words = make("div");
  const picture = make("div", { class: "spinning" });
  const list = make("ol", { class: "layers" });
  let shown = null;
  const layers = panel("Layers, strongest first", list);
  element.replaceChildren(panel("Spinning top", words, picture), layers);
  const observer = new ResizeObserver(() => draw());
  observer.observe(picture);

  function render(_, top) {
    shown = top.why_not ? { layers: [] } : top.measures;
    if (top.why_not) {
      words.replaceChildren(make("p", {}, `Nothing to draw: ${top.why_not}.`));
    } else if (shown.layers.every((layer) => layer.players.length < 2)) {
      words.replaceChildren(
        make("p", {}, "Strength is a line here: no snapshots beat each other in circles, each beats those below it."),
        make("p", { class: "faint" }, `${percent(shown.pairs_met)} of the pairs have met.`),
      );
    } else {
      words.replaceChildren(
        make(
          "p",
          {},
          `Who beats whom is ${within(shown.transitive_share, (value) => percent(value))} skill; `,
          `the rest goes in circles. The equilibrium needs ${within(shown.effective_players, short)} players; `,
          `their diversity is ${within(shown.effective_diversity, short)}.`,
        ),
        make(
          "p",
          { class: "faint" },
          "Each bar is a layer of snapshots that beat each other in circles: the higher, the stronger against ",
          `the whole league; the wider, the more there are. ${percent(shown.pairs_met)} of the pairs have met.`,
        ),
      );
    }
    layers.hidden = shown.layers.length === 0;
    list.replaceChildren(
      ...shown.layers.map((layer) =>
        make(
          "li",
          {},
          make(
            "span",
            { class: "faint" },
            `strength ${within(layer.strength, short)}: `,
          ),
          ...layer.players.flatMap((player, number) => [number ? ", " : "", playerLink(player)]),
        ),
      ),
    );
    draw();
  }

  function draw() {
    const width = Math.min(picture.clientWidth, 760);
    if (!shown || !shown.layers.some((layer) => layer.players.length > 1) || !width) {
      picture.replaceChildren();
      return;
    }
    const height = Math.max(260, Math.min(1000, 14 * shown.layers.length + 80));
    const [left, right, above, below] = [64, 12, 14, 34];
    const widest = Math.max(...shown.layers.map((layer) => layer.players.length));
    const low = Math.min(...shown.layers.map((layer) => layer.strength.low));
    const high = Math.max(...shown.layers.map((layer) => layer.strength.high));
    const y = (strength) => above + ((height - above - below) * (high - strength)) / Math.max(high - low, 1e-9);
    const middle = left + (width - left - right) / 2;
    const unit = Math.min((width - left - right) / widest, WIDEST_PLAYER);
    const svg = makeSvg("svg", {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "group",
      "aria-label": "Spinning top",
    });
    for (const mark of [low, (low + high) / 2, high]) {
      svg.append(
        makeSvg("line", { x1: left, x2: width - right, y1: y(mark), y2: y(mark), class: "grid" }),
        makeSvg("text", { x: left - 6, y: y(mark) + 4, class: "axis end" }, short(Number(mark.toFixed(2)))),
      );
    }
    const edge = (sign) =>
      shown.layers.map((layer) => `${middle + (sign * unit * layer.players.length) / 2},${y(layer.strength.value)}`);
    svg.append(makeSvg("polygon", { points: [...edge(-1), ...edge(1).reverse()].join(" "), class: "outline" }));
    for (const layer of shown.layers) {
      const [count, at] = [layer.players.length, y(layer.strength.value)];
      svg.append(
        makeSvg("line", { x1: middle, x2: middle, y1: y(layer.strength.low), y2: y(layer.strength.high), class: "error" }),
        makeSvg("line", {
          x1: middle - (unit * count) / 2,
          x2: middle + (unit * count) / 2,
          y1: at,
          y2: at,
          class: "layer",
        }),
      );
      layer.players.forEach((player, number) => {
        const text = `${player}: strength of its layer ${short(layer.strength.value)}, ${count} in it`;
        svg.append(
          makeSvg(
            "a",
            { href: `#player/${encodeURIComponent(player)}`, "aria-label": text },
            makeSvg("title", {}, text),
            makeSvg("circle", {
              cx: middle + unit * (number + 0.5 - count / 2),
              cy: at,
              r: Math.max(2.5, Math.min(6, unit / 2.5)),
              class: "dot",
            }),
          ),
        );
      });
    }
    svg.append(
      makeSvg(
        "text",
        { x: middle, y: height - 8, class: "axis middle" },
        `cyclic width: players of a layer, up to ${widest}`,
      ),
      makeSvg(
        "text",
        { x: 14, y: height / 2, class: "axis middle", transform: `rotate(-90 14 ${height / 2})` },
        "transitive strength",
      ),
    );
    picture.replaceChildren(svg);
  }

  return { documents: ["top"], render, close: () => observer.disconnect() };
}

function within(estimate, shown) {
  if (estimate === null) return "unknown";
  const [value, low, high] = [estimate.value, estimate.low, estimate.high].map((one) => shown(one));
  return low === high ? value : `${value} (${low} to ${high})`;
}
