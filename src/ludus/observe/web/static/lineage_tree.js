// Where each player comes from: a lane per learning player, its snapshots on it where they were frozen.

import { make, makeSvg } from "./dom.js";
import { elo, short } from "./numbers.js";
import { heatColour } from "./palette.js";

const LANE = 44;
const LEFT = 12;
const RIGHT = 16;

export class LineageTree {
  constructor() {
    this.element = make("div", { class: "lineage" });
    this.players = [];
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  close() {
    this.observer.disconnect();
  }

  show(players) {
    this.players = players;
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width || !this.players.length || (width === this.drawn?.width && this.players === this.drawn.players))
      return;
    this.drawn = { width, players: this.players };
    const learning = this.players.filter((player) => player.lineage !== null);
    const lanes = new Map(learning.map((player, lane) => [player.id, lane]));
    const others = this.players.filter((player) => player.lineage === null && !lanes.has(player.parent));
    const most = Math.max(1, ...this.players.map((player) => player.decisions));
    const ratings = this.players.map((player) => player.elo).filter((value) => value !== null);
    const [low, high] = [Math.min(...ratings), Math.max(...ratings)];
    const x = (decisions) => LEFT + ((width - LEFT - RIGHT) * decisions) / most;
    const y = (lane) => 30 + LANE * lane;
    const height = y(learning.length + (others.length ? 1 : 0)) - 6;
    const shade = (player) =>
      player.elo === null || high === low ? "var(--unknown)" : heatColour((player.elo - low) / (high - low));
    const picture = makeSvg("svg", {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "group",
      "aria-label": "Lineage",
    });

    for (const player of learning) {
      const lane = y(lanes.get(player.id));
      picture.append(
        makeSvg("line", { x1: x(0), x2: x(player.decisions), y1: lane, y2: lane, class: "lane" }),
        link(player, makeSvg("text", { x: x(0), y: lane - 12, class: "name" }, `${player.id} (${player.role})`)),
        link(
          player,
          makeSvg("rect", {
            x: x(player.decisions) - 6,
            y: lane - 6,
            width: 12,
            height: 12,
            fill: shade(player),
            class: "dot",
          }),
        ),
      );
    }
    for (const player of learning) {
      const lane = y(lanes.get(player.id));
      player.lineage.forEach((start, number) => {
        const origin = start.donor ?? start.model?.split(":")[0];
        const [at, from] = [x(start.decisions), lanes.get(origin)];
        if (from !== undefined && from !== lanes.get(player.id)) {
          picture.append(makeSvg("line", { x1: at, x2: at, y1: y(from), y2: lane, class: "taken" }));
        }
        if (number) picture.append(makeSvg("line", { x1: at, x2: at, y1: lane - 9, y2: lane + 9, class: "reset" }));
      });
    }
    for (const player of this.players) {
      if (player.lineage !== null || !lanes.has(player.parent)) continue;
      const [at, lane] = [x(player.decisions), y(lanes.get(player.parent))];
      picture.append(
        link(
          player,
          makeSvg("circle", {
            cx: at,
            cy: lane,
            r: player.tags.includes("best") ? 7 : 5,
            fill: shade(player),
            class: player.tags.includes("best") ? "dot best" : "dot",
          }),
        ),
      );
    }
    if (others.length) {
      const lane = y(learning.length);
      picture.append(makeSvg("text", { x: x(0), y: lane - 12, class: "name" }, "bots and players from elsewhere"));
      const gap = Math.min(24, (width - LEFT - RIGHT) / others.length);
      others.forEach((player, number) =>
        picture.append(
          link(
            player,
            makeSvg("circle", { cx: LEFT + 6 + gap * number, cy: lane, r: 5, fill: shade(player), class: "dot" }),
          ),
        ),
      );
    }
    this.element.replaceChildren(
      picture,
      make(
        "p",
        { class: "faint" },
        `Left to right: decisions trained on, up to ${short(most)}. A circle is a snapshot, a square the player ` +
          `that learns on${high > low ? `; the brighter, the higher its Elo (${elo(low)} to ${elo(high)})` : ""}; a thick ring is its best. ` +
          "A bar across is a reset, a dashed line leads from the player whose weights were taken over.",
      ),
    );
  }
}

function link(player, shape) {
  const known = [`Elo ${elo(player.elo)}`, `${short(player.decisions)} decisions`, player.reason].filter(Boolean);
  const words = `${player.id}: ${known.join(", ")}`;
  return makeSvg(
    "a",
    { href: `#player/${encodeURIComponent(player.id)}`, "aria-label": words },
    makeSvg("title", {}, words),
    shape,
  );
}
