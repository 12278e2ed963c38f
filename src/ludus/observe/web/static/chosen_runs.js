// The runs that are ticked to be compared, as long as the page is open, and the address of a comparison.

const chosen = new Set();

export function chosenRuns() {
  return [...chosen];
}

export function toggleRun(key, isChosen) {
  if (isChosen) chosen.add(key);
  else chosen.delete(key);
}

export function chooseRuns(keys) {
  chosen.clear();
  for (const key of keys) chosen.add(key);
}

// asked: {run: [keys], study: [keys], of, name, over}
export function comparisonWords(asked) {
  const words = new URLSearchParams();
  for (const name of ["run", "study"]) for (const key of asked[name]) words.append(name, key);
  for (const name of ["of", "name", "over"]) if (asked[name]) words.set(name, asked[name]);
  return words;
}

export function comparisonLink(asked) {
  return `#compare/${encodeURIComponent(comparisonWords(asked).toString())}`;
}

export function askedIn(argument) {
  const words = new URLSearchParams(argument);
  return {
    run: words.getAll("run"),
    study: words.getAll("study"),
    of: words.get("of") ?? "rating",
    name: words.get("name") ?? "",
    over: words.get("over") ?? "decisions",
  };
}
