// Colours that people with any kind of colour vision tell apart: lines by Okabe and Ito, heat by cividis.

const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const ON_DARK = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00"];
const DASHES = [[], [6, 3], [2, 3], [10, 3, 2, 3]];
const CIVIDIS = [
  [0, 34, 78],
  [18, 53, 112],
  [59, 73, 108],
  [87, 93, 109],
  [112, 113, 115],
  [138, 134, 120],
  [165, 156, 116],
  [195, 179, 105],
  [225, 204, 85],
  [254, 232, 56],
];

// The colour and the dashes of the line with this number; after six the dashes tell them apart.
export function lineStyle(number) {
  const colours = matchMedia("(prefers-color-scheme: dark)").matches ? ON_DARK : LINES;
  return {
    colour: colours[number % colours.length],
    dash: DASHES[Math.floor(number / colours.length) % DASHES.length],
  };
}

// Red, green and blue from 0 to 255, for a share from 0 to 1.
export function heat(share) {
  const at = Math.min(Math.max(share, 0), 1) * (CIVIDIS.length - 1);
  const low = Math.min(Math.floor(at), CIVIDIS.length - 2);
  return CIVIDIS[low].map((value, part) => Math.round(value + (at - low) * (CIVIDIS[low + 1][part] - value)));
}

export function heatColour(share) {
  return `rgb(${heat(share).join(" ")})`;
}

// What can be read on that colour.
export function inkOn(share) {
  return share > 0.5 ? "#111" : "#fff";
}
