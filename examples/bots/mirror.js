// A bot for tic-tac-toe in another language: it answers in the cell opposite to the opponent's latest mark.
//
//     ludus check tic_tac_toe --bot "program:node examples/bots/mirror.js"
const lines = require("readline").createInterface({ input: process.stdin });
const seen = new Map(); // "table seat" -> the opponent's marks at the last request

function move(row) {
  const place = `${row.table} ${row.seat}`;
  const before = row.new ? Array(9).fill(0) : seen.get(place);
  const marks = row.observation.board.slice(9);
  seen.set(place, marks);
  const latest = marks.findIndex((mark, cell) => mark && !before[cell]);
  const wanted = latest < 0 ? 4 : 8 - latest;
  return row.legal.move.includes(wanted) ? wanted : row.legal.move[0];
}

lines.on("line", (line) => {
  const request = JSON.parse(line);
  const answer =
    request.type === "hello"
      ? { protocol: 1 }
      : { id: request.id, actions: request.rows.map((row) => ({ move: move(row) })) };
  console.log(JSON.stringify(answer));
});
