// The pages of one run.

import { make } from "./dom.js";
import { percent } from "./numbers.js";
import { printWhole } from "./print_whole.js";
import { findSource } from "./source.js";
import { startViews } from "./view_switch.js";
import * as games from "./games.js";
import * as league from "./league.js";
import * as matches from "./matches.js";
import * as overview from "./overview.js";
import * as player from "./player.js";
import * as top from "./top.js";
import * as training from "./training.js";

const IN_LIST = /^(.*)\/run\/.*$/; // the address of a run among others
const stateLine = document.getElementById("state");
const source = findSource();
let told = "";

function tell(one, isThere) {
  if (one !== null) {
    document.getElementById("run").textContent = one.run;
    document.getElementById("experiment").textContent = [one.experiment, one.trial && `trial ${one.trial}`]
      .filter(Boolean)
      .join(", ");
    document.title = `${one.run}: ${one.state}`;
    const share = one.budget && !one.ended ? `, ${percent(Math.min(1, one.decisions / one.budget))}` : "";
    told = one.state + share + (one.silent_s ? `, no news for ${Math.round(one.silent_s)} s` : "");
  }
  stateLine.textContent = isThere ? told : `${told} (the server is gone; trying again)`;
  stateLine.className = isThere ? "" : "warn";
}

const list = IN_LIST.exec(location.pathname);
if (source.isLive && list !== null) {
  const link = make("a", { href: `${list[1]}/`, class: "up" }, "All runs");
  document.querySelector("header nav").prepend(link);
}
const views = { overview, league, player, top, matches, games, training };
if (!source.isLive)
  printWhole(source, [
    ["Overview", overview.create],
    ["League", league.create],
    ["Players", player.createList],
    ["Spinning top", top.create],
    ["Matches", matches.create],
    ["Games", games.create],
    ["Training", training.create],
  ]);
startViews({ source, views, first: "overview", head: "overview", tell });
