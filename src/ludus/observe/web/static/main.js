// The page: finds out which view is asked for, gets its documents, and draws it again when they change.

import { make } from "./dom.js";
import { percent } from "./numbers.js";
import { findSource } from "./source.js";
import * as games from "./games.js";
import * as league from "./league.js";
import * as matches from "./matches.js";
import * as overview from "./overview.js";
import * as player from "./player.js";
import * as top from "./top.js";
import * as training from "./training.js";

const VIEWS = { overview, league, player, top, matches, games, training };
const source = findSource();
const place = document.getElementById("view");
const stateLine = document.getElementById("state");
let current = null;
let isThere = true;
let told = "";

function show() {
  const [name, ...rest] = decoded(location.hash.slice(1)).split("/");
  if (name === "view") return; // the link that skips to the content
  const argument = rest.join("/");
  const view = Object.hasOwn(VIEWS, name) ? name : "overview";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  current?.close();
  const element = make("div", { class: "view" }, make("p", { class: "faint" }, "loading …"));
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  place.replaceChildren(problem, element);
  const fail = (error) => {
    problem.textContent = error.message;
    problem.hidden = false;
  };
  const build = view === "player" && !argument ? VIEWS.player.createList : VIEWS[view].create;
  current = { ...build(element, { source, argument, fail }), fail, problem };
  for (const one of current.documents) load(one, current);
}

async function load(name, view) {
  try {
    const found = await source.get(name);
    if (name === "overview") tellState(found);
    if (view === null || view !== current || !view.documents.includes(name)) return;
    view.render(name, found);
    view.problem.hidden = true;
  } catch (error) {
    if (view === current && view !== null) view.fail(error);
  }
}

// `names`: of documents that have changed; null: all.
function changed(names) {
  if (current === null) return;
  for (const name of current.documents) if (names === null || names.includes(name)) load(name, current);
  if (!current.documents.includes("overview") && (names === null || names.includes("overview")))
    load("overview", null);
}

function tellState(one) {
  document.getElementById("run").textContent = one.run;
  document.getElementById("experiment").textContent = [one.experiment, one.trial && `trial ${one.trial}`]
    .filter(Boolean)
    .join(", ");
  document.title = `${one.run}: ${one.state}`;
  const share = one.budget && !one.ended ? `, ${percent(Math.min(1, one.decisions / one.budget))}` : "";
  told = one.state + share + (one.silent_s ? `, no news for ${Math.round(one.silent_s)} s` : "");
  tell();
}

function tell() {
  stateLine.textContent = isThere ? told : `${told} (the server is gone; trying again)`;
  stateLine.className = isThere ? "" : "warn";
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

addEventListener("hashchange", show);
source.follow(changed, (there) => {
  isThere = there;
  tell();
});
show();
if (!current.documents.includes("overview")) load("overview", null);
