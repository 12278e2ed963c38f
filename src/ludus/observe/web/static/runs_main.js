// The pages of a folder with runs.

import { findSource } from "./source.js";
import { startViews } from "./view_switch.js";
import * as compare from "./compare.js";
import * as runs from "./runs.js";
import * as studies from "./studies.js";

const stateLine = document.getElementById("state");
const source = findSource();
let told = "";

function tell(one, isThere) {
  if (one !== null) {
    document.getElementById("run").textContent = one.folder;
    document.title = `${one.folder}: runs`;
    document.querySelector('nav a[href="#studies"]').hidden = one.studies.length === 0;
    const live = one.runs.filter((run) => run.is_live).length;
    told = `${one.runs.length} ${one.runs.length === 1 ? "run" : "runs"}${live ? `, ${live} of them live` : ""}`;
  }
  stateLine.textContent = isThere ? told : `${told} (the server is gone; trying again)`;
  stateLine.className = isThere ? "" : "warn";
}

startViews({ source, views: { runs, compare, studies }, first: "runs", head: "runs", tell });
