// A person against an exported agent. Everything is in this file: the rules, the networks and their evaluator.

import { GAMES } from "./game_rules.js";
import { Network, choose } from "./evaluator.js";
import { GameView, make } from "./game_views.js";

const { rules, agents } = JSON.parse(document.getElementById("ludus-data").textContent).agents;
const find = (id) => document.getElementById(id);

export class Agent {
  constructor(facts) {
    this.facts = facts;
    this.networks = facts.network_of_seat.map((number) => new Network(facts.networks[number])); // a memory per seat
  }

  reset() {
    this.networks.forEach((network) => network.reset());
  }

  // What it thinks of the options of the seat to move, and its move. Without a uniform number: the most probable.
  decide(game, uniform = null) {
    const probabilities = this.networks[game.seat].probabilities(game.observation(game.seat), game.legal());
    return { probabilities, move: choose(probabilities, uniform) };
  }
}

export const newGame = () => new GAMES[rules.game](rules);

class Page {
  constructor() {
    this.agents = agents.map((facts) => new Agent(facts));
    this.game = newGame();
    find("title").textContent = rules.game.replaceAll("_", " ");
    agents.forEach((facts, number) => {
      const rating = facts.rating ? `, Elo ${Math.round(facts.rating.elo)}` : "";
      const level = agents.length > 1 ? `level ${number + 1}: ` : "";
      find("agent").append(make("option", { text: `${level}${facts.name}${rating}`, value: number }));
    });
    find("agent").value = agents.length - 1;
    if (this.game.hides) find("way").value = "drawn"; // whoever always does the same there can be read
    find("setup").addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
    });
    find("thoughts").addEventListener("change", () => this.tell());
    this.start();
  }

  get agent() {
    return this.agents[Number(find("agent").value)];
  }

  start() {
    this.person = Number(find("seat").value);
    this.opponent = this.agent;
    this.drawn = find("way").value === "drawn";
    this.thought = null;
    this.game.reset();
    this.opponent.reset();
    const names = ["", ""];
    names[this.person] = "you";
    names[1 - this.person] = this.opponent.facts.name;
    find("who").textContent = `${names[0]} against ${names[1]}`;
    const choosing = (option) => this.move(option);
    this.view = new GameView(find("table"), { names, teams: [0, 1], choose: choosing });
    this.goOn();
  }

  move(option) {
    if (this.game.over || this.game.seat !== this.person || !this.game.legal()[option]) return;
    this.game.play(option);
    this.goOn();
  }

  // Let the agent answer, and show the table.
  goOn() {
    while (!this.game.over && this.game.seat !== this.person) {
      const options = this.names();
      this.thought = this.opponent.decide(this.game, this.drawn ? Math.random() : null);
      this.thought.options = options;
      this.game.play(this.thought.move);
    }
    const legal = this.names();
    const view = this.game.view(this.person);
    this.view.show(view, legal);
    // A board is clicked itself.
    find("options").replaceChildren(...(view.kind === "board" ? [] : legal.map(({ option, name }) =>
      make("button", { text: name, type: "button", onclick: () => this.move(option) }))));
    const status = find("status");
    status.classList.toggle("over", this.game.over);
    if (!this.game.over) status.textContent = "your move";
    else if (this.game.winner === null) status.textContent = "a draw";
    else status.textContent = this.game.winner === this.person ? "you win" : "you lose";
    this.tell();
  }

  // The options of the seat to move.
  names() {
    return this.game.legal().flatMap((free, option) => (free ? [{ option, name: this.game.optionName(option) }] : []));
  }

  tell() {
    const hidden = this.game.hides && !this.game.over; // it would tell what the opponent has
    if (!find("thoughts").checked || this.thought === null || hidden) return find("told").replaceChildren();
    const rows = this.thought.options.map(({ option, name }) => {
      const share = this.thought.probabilities[option];
      const bar = make("div", { of: "bar" });
      bar.style.width = `${100 * share}%`;
      const of = option === this.thought.move ? "share chosen" : "share";
      return make("div", { of }, make("span", { text: name }), bar,
        make("span", { text: `${(100 * share).toFixed(1)} %` }));
    });
    find("told").replaceChildren(make("div", {}, make("p", { text: "its last move, before it was made" }), ...rows));
  }
}

// For programs: what the page itself plays with.
window.ludus = { newGame, choose, agents: agents.map((facts) => new Agent(facts)), page: new Page() };
