// The map of skirmish on a canvas: bases are squares, workers small discs, spears triangles, horses diamonds, bows
// rings, as in the pictures of `ludus eval --render`.

export const MAP = 32;
export const CELLS = 16;
export const [BASE, WORKER, SPEAR, HORSE, BOW] = [0, 1, 2, 3, 4];
export const KINDS = ["base", "worker", "spear", "horse", "bow"];
const RADIUS = [1.4, 0.35, 0.5, 0.5, 0.5];
const COLOURS = ["#eb5c48", "#5492ff"];
const [GROUND, GRID, DARK, LIGHT, PATCH] = ["#2e3c2c", "#37473a", "#101214", "#f0f0f0", "#5ac8dc"];

// Units are [id, kind, side, x, y, health, order, carries, hero]; patches [id, x, y, left]. `marks`: selected (a set
// of ids), box ([x, y, x, y]), cursor ([x, y]), goals ([[x, y], ...]) and turned: side 1 is at the lower left.
export function drawMap(canvas, view, marks = {}) {
  const pen = canvas.getContext("2d");
  const scale = canvas.width / MAP;
  pen.setTransform(scale, 0, 0, -scale, 0, canvas.height); // y goes up, as in the game
  pen.fillStyle = GROUND;
  pen.fillRect(0, 0, MAP, MAP);
  drawGrid(pen);
  const place = marks.turned ? (at) => MAP - at : (at) => at;
  for (const [, x, y, left] of view.patches) {
    pen.fillStyle = PATCH;
    disc(pen, place(x), place(y), 0.25 + 0.3 * left);
  }
  if (view.fog !== null) drawFog(pen, view.fog);
  for (const unit of view.units) {
    const shown = unit.with(3, place(unit[3])).with(4, place(unit[4]));
    drawUnit(pen, shown, marks.selected?.has(unit[0]), view.own === unit[0]);
  }
  drawMarks(pen, marks);
  pen.fillStyle = LIGHT;
  pen.fillRect(0, 0, MAP * Math.max(0, 1 - view.tick / view.last_tick), 0.2);
}

function drawGrid(pen) {
  pen.strokeStyle = GRID;
  pen.lineWidth = 0.04;
  pen.beginPath();
  for (let at = 0; at <= MAP; at += MAP / CELLS) {
    pen.moveTo(at, 0);
    pen.lineTo(at, MAP);
    pen.moveTo(0, at);
    pen.lineTo(MAP, at);
  }
  pen.stroke();
}

function drawFog(pen, fog) {
  const cell = MAP / CELLS;
  pen.fillStyle = "rgba(8, 10, 12, 0.62)";
  for (let at = 0; at < fog.length; at++) {
    if (fog[at] === "0") pen.fillRect((at % CELLS) * cell, Math.floor(at / CELLS) * cell, cell, cell);
  }
}

function drawUnit(pen, [, kind, side, x, y, health, , carries, hero], selected, own) {
  const radius = RADIUS[kind] + (hero ? 0.25 : 0);
  if (selected || own) {
    pen.strokeStyle = LIGHT;
    pen.lineWidth = 0.12;
    pen.beginPath();
    pen.arc(x, y, radius + 0.3, 0, 7);
    pen.stroke();
  }
  pen.strokeStyle = hero ? LIGHT : DARK;
  pen.lineWidth = 0.1;
  shape(pen, kind, x, y, radius);
  pen.fillStyle = COLOURS[side];
  pen.fill("evenodd");
  pen.stroke();
  if (carries) {
    pen.fillStyle = "#96f0ff";
    disc(pen, x, y, 0.15);
  }
  if (health < 1 || kind === BASE) {
    const half = Math.max(radius, 0.55);
    pen.fillStyle = DARK;
    pen.fillRect(x - half - 0.06, y + radius + 0.14, 2 * half + 0.12, 0.42);
    pen.fillStyle = health > 0.5 ? "#5adc5a" : health > 0.25 ? "#f0c040" : "#ff6a50";
    pen.fillRect(x - half, y + radius + 0.2, 2 * half * Math.max(0, health), 0.3);
  }
}

function shape(pen, kind, x, y, radius) {
  pen.beginPath();
  if (kind === BASE) pen.rect(x - radius, y - radius, 2 * radius, 2 * radius);
  else if (kind === SPEAR) outline(pen, [[x, y + radius], [x + radius, y - radius], [x - radius, y - radius]]);
  else if (kind === HORSE) outline(pen, [[x, y + radius], [x + radius, y], [x, y - radius], [x - radius, y]]);
  else {
    pen.arc(x, y, radius, 0, 7);
    if (kind === BOW) {
      pen.moveTo(x + radius / 2, y);
      pen.arc(x, y, radius / 2, 0, 7);
    }
  }
}

function outline(pen, points) {
  pen.moveTo(...points[0]);
  for (const point of points.slice(1)) pen.lineTo(...point);
  pen.closePath();
}

function disc(pen, x, y, radius) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 7);
  pen.fill();
}

function drawMarks(pen, { box, cursor, goals = [] }) {
  pen.strokeStyle = LIGHT;
  pen.lineWidth = 0.1;
  if (box) pen.strokeRect(box[0], box[1], box[2] - box[0], box[3] - box[1]);
  for (const [x, y] of goals) {
    pen.beginPath();
    pen.arc(x, y, 0.5, 0, 7);
    pen.stroke();
  }
  if (cursor) {
    pen.beginPath();
    pen.moveTo(cursor[0] - 0.7, cursor[1]);
    pen.lineTo(cursor[0] + 0.7, cursor[1]);
    pen.moveTo(cursor[0], cursor[1] - 0.7);
    pen.lineTo(cursor[0], cursor[1] + 0.7);
    pen.stroke();
  }
}
