// Numbers as people read them. What is not known is a dash.

export const UNKNOWN = "–";

export function whole(value) {
  return isKnown(value) ? Math.round(value).toLocaleString("en") : UNKNOWN;
}

export function short(value) {
  if (!isKnown(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)}G`;
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  if (size >= 100 || Number.isInteger(value)) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return String(Number(value.toPrecision(3)));
}

// A player in one role: its score, and its lead over what its opponents got there.
export function roleScore(one) {
  if (one.score === null) return { score: UNKNOWN, lead: "" };
  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
  return { score: signed(one.score), lead: `${signed(one.lead)} ± ${(1.96 * one.lead_error).toFixed(2)}` };
}

export function percent(share, digits = 0) {
  return isKnown(share) ? `${(100 * share).toFixed(digits)} %` : UNKNOWN;
}

export function elo(value) {
  if (!isKnown(value)) return UNKNOWN;
  const rounded = Math.round(value);
  return rounded === 0 ? "0" : `${rounded > 0 ? "+" : "−"}${Math.abs(rounded)}`;
}

export function span(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  const all = Math.max(0, Math.floor(seconds));
  if (all < 60) return `${all} s`;
  if (all < 3600) return `${Math.floor(all / 60)}m ${pad(all % 60)}s`;
  if (all < 86400) return `${Math.floor(all / 3600)}h ${pad(Math.floor(all / 60) % 60)}m`;
  return `${Math.floor(all / 86400)}d ${pad(Math.floor(all / 3600) % 24)}h`;
}

export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  return value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${Math.round(value / 2 ** 20)} MiB`;
}

export function isKnown(value) {
  return value !== null && value !== undefined && Number.isFinite(value);
}

function trim(value) {
  return String(Number(value.toPrecision(3)));
}

function pad(value) {
  return String(value).padStart(2, "0");
}

const WIDE_ELO = 200; // half an interval from which on a rating says nothing yet

// Whether a player's rating is known well enough to be shown.
export function isNarrow(one) {
  return one.elo_interval !== null && one.elo_interval[1] - one.elo_interval[0] <= 2 * WIDE_ELO;
}

// One whose standard error is known.
export function isNarrowError(error) {
  return error !== null && 1.96 * error <= WIDE_ELO;
}
