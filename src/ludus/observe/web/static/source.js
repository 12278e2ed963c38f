// Where the documents come from: the server of `ludus watch`, or the page itself in a report.

const EMBEDDED = "ludus-data";

export function findSource() {
  const embedded = document.getElementById(EMBEDDED);
  return embedded === null ? new Served() : new Embedded(JSON.parse(embedded.textContent));
}

// Asks the server, which tells what has changed.
class Served {
  isLive = true;

  async get(name) {
    return asked(`data/${name.split("/").map(encodeURIComponent).join("/")}`);
  }

  async matches(filter) {
    const chosen = Object.entries(filter).filter(([, value]) => value !== "" && value !== null);
    return asked(chosen.length ? `data/matches?${new URLSearchParams(chosen)}` : "data/matches");
  }

  // Curves of several runs; `words` are those of an address.
  async compare(words) {
    return asked(`data/compare?${words}`);
  }

  async replay(name) {
    return asked(`replays/${encodeURIComponent(name)}`);
  }

  async game(name) {
    return asked(`games/${encodeURIComponent(name)}`);
  }

  // A new game between these players, by team; the server plays it now.
  async play(players) {
    return asked("watch", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ players }),
    });
  }

  // `onChange` gets the names of documents; `onLine` whether the server is there.
  follow(onChange, onLine) {
    const events = new EventSource("events");
    let wasLost = false;
    events.addEventListener("changed", (event) => onChange(JSON.parse(event.data)));
    events.addEventListener("open", () => {
      onLine(true);
      if (wasLost) onChange(null); // anything may have changed meanwhile
      wasLost = false;
    });
    events.addEventListener("error", () => {
      wasLost = true;
      onLine(false);
    });
  }
}

// Has everything already, and nothing changes.
class Embedded {
  isLive = false;

  constructor(documents) {
    this.documents = documents;
    if (documents.matches) documents.matches.more = null; // older ones are not in a report
  }

  async get(name) {
    const found = this.documents[name];
    if (found === undefined) throw new Error(`this report has no ${name}`);
    return found;
  }

  async matches(filter) {
    const all = await this.get("matches");
    const players = [filter.player, filter.opponent].filter(Boolean);
    const matches = all.matches.filter(
      (match) =>
        (!filter.purpose || match.purpose === filter.purpose) &&
        (!filter.state || match.state === filter.state) &&
        players.every((player) => match.sides.some((side) => side.players.includes(player))),
    );
    return { ...all, matches, more: null };
  }

  async replay(name) {
    return this.get(`replay/${name}`);
  }

  async game(name) {
    return this.get(`game/${name}`);
  }

  follow() {}
}

async function asked(address, request = {}) {
  const answer = await fetch(address, request);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}
