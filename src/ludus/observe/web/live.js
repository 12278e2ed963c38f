"use strict";

const at = (id) => document.getElementById(id);
let paused = false;
let over = false;

/** An element with a class and a text; texts are never read as HTML. */
function element(tag, name, text) {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  return made;
}

function say(status, isOver = false) {
  at("status").textContent = status;
  at("status").classList.toggle("over", isOver);
}

function showMoment(moment) {
  document.title = `${moment.teams.map((team) => team.player).join(" – ")} · Ludus`;
  at("game").textContent = moment.game;
  at("teams").replaceChildren(
    ...moment.teams.map((team) => {
      const item = element("li", team.won ? "won" : "", "");
      if (moment.teams.length > 1) {
        const dot = element("span", "dot", "");
        dot.style.backgroundColor = team.colour;
        item.append(dot);
      }
      item.append(element("span", "player", team.player), element("span", "score", team.score));
      return item;
    }),
  );
  at("picture").src = moment.picture;
  at("picture").alt = `${moment.game}: ${moment.state.join(", ")}`;
  at("picture").hidden = false;
  at("state").textContent = moment.state.join(" · ");
}

function showControls(controls) {
  paused = controls.paused;
  at("pause").textContent = paused ? "Play" : "Pause";
  if (!over) say(paused ? "paused" : "live");
  at("speed").replaceChildren(
    ...controls.speeds.map((speed) => {
      const option = element("option", "", `${speed} ×`);
      option.value = speed;
      option.selected = speed === controls.speed;
      return option;
    }),
  );
}

function showResults(results) {
  at("results").hidden = false;
  at("rows").replaceChildren(
    ...results.rows.map((cells) => {
      const row = document.createElement("tr");
      row.append(...cells.map((cell) => element("td", "", cell)));
      return row;
    }),
  );
}

function end(reason) {
  over = true;
  events.close();
  say(reason, true);
  for (const id of ["pause", "next", "speed"]) at(id).disabled = true;
}

function ask(control) {
  fetch("control", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(control),
  }).catch(() => {});
}

const events = new EventSource("events");
const hear = (kind, show) => events.addEventListener(kind, (event) => show(JSON.parse(event.data)));
hear("moment", showMoment);
hear("controls", showControls);
hear("results", showResults);
hear("ended", (content) => end(content.reason));
events.onerror = () => say("no connection to the command");  // the browser goes on trying

at("pause").onclick = () => ask({ paused: !paused });
at("next").onclick = () => ask({ next: true });
at("speed").onchange = () => ask({ speed: Number(at("speed").value) });
document.addEventListener("keydown", (event) => {
  const typing = ["BUTTON", "SELECT"].includes(document.activeElement?.tagName);
  if (over || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.key === " " && !typing) {
    event.preventDefault();
    ask({ paused: !paused });
  } else if (event.key === "n") {
    ask({ next: true });
  }
});
