// Nim on a game server in another language, written from docs/game-server.md.
//
//   npm install @grpc/grpc-js @grpc/proto-loader
//   node nim.js 23432 ../../src/ludus/games/remote/game_server.proto
//   ludus check remote://127.0.0.1:23432/nim
//
// A heap of 7 to 13 stones; two seats take 1 to 3 in turn, and the seat that takes the last one wins.
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [port, proto] = process.argv.slice(2);
const { ludus } = grpc.loadPackageDefinition(loader.loadSync(proto, { arrays: false, defaults: true }));

const SPEC = {
  name: "nim",
  kinds: [{
    name: "player",
    observation: { heap: { type: "Vector", size: 1, dtype: "float32" } },
    critic: {},
    action: { take: { type: "Choice", num: 3, when: null, masked: true } },
    rewards: [],
  }],
  seats: [0, 0],
  teams: [0, 1],
  max_length: 13,
  zero_sum: true,
  reward_is_score: true,
  timed: false,
};

const newTable = () => ({ heap: 7, seat: 0, over: false, reward: [0, 0] });

function reset(table, seed) {
  Object.assign(table, newTable(), { heap: 7 + Number(seed % 7n) });
}

function step(table, takes) {
  if (table.over) return;
  table.heap -= takes[table.seat] + 1;
  if (table.heap === 0) {
    table.over = true;
    table.reward = table.seat === 0 ? [1, -1] : [-1, 1];
  } else {
    table.seat = 1 - table.seat;
  }
}

// Arrays one after the other, each at a multiple of 8 bytes.
function inOrder(arrays) {
  const parts = [];
  let place = 0;
  for (const array of arrays) {
    const padding = (8 - (place % 8)) % 8;
    const bytes = Buffer.from(array.buffer, array.byteOffset, array.byteLength);
    parts.push(Buffer.alloc(padding), bytes);
    place += padding + bytes.length;
  }
  return Buffer.concat(parts);
}

function view(tables) {
  const floats = (of) => Float32Array.from(tables.flatMap(of));
  const bools = (of) => Uint8Array.from(tables.flatMap(of).map(Number));
  const legal = (table) => [1, 2, 3].map((take) => take <= table.heap);
  return inOrder([
    floats((table) => [table.heap, table.heap]), // observation heap: [tables, seats, 1]
    bools((table) => [...legal(table), ...legal(table)]), // legal take: [tables, seats, 3]
    bools((table) => [0, 1].map((seat) => !table.over && table.seat === seat)), // to_act
    floats((table) => table.reward), // reward
    bools((table) => [table.over]), // over
    bools(() => [false]), // truncated
    floats((table) => table.reward), // score
    new BigInt64Array(tables.length), // clock
    new Float32Array(0), // further rewards
  ]);
}

function play(stream) {
  let tables = [];
  const answer = (header, arrays = Buffer.alloc(0)) =>
    stream.write({ header: Buffer.from(JSON.stringify(header)), arrays });
  stream.on("data", ({ header, arrays }) => {
    const request = JSON.parse(header);
    const rows = request.rows;
    if (request.message === "hello") {
      tables = Array.from({ length: request.tables }, newTable);
      const bots = ["random", "perfect"];
      answer({ message: "welcome", protocol: 1, server: "nim.js", game: "nim", spec: SPEC, bots, pictures: false });
    } else if (request.message === "reset") {
      const some = Array.from({ length: rows }, (_, row) => tables[Number(arrays.readBigInt64LE(8 * row))]);
      some.forEach((table, row) => reset(table, arrays.readBigUInt64LE(8 * (rows + row))));
      answer({ message: "view", lost: {} }, view(some));
    } else if (request.message === "step") {
      tables.forEach((table, index) =>
        step(table, [0, 1].map((seat) => arrays.readInt32LE(4 * (2 * index + seat)))));
      answer({ message: "view", lost: {} }, view(tables));
    } else if (request.message === "act") {
      const perfect = (heap) => Math.min((heap % 4 || 1) - 1, heap - 1);
      const chosen = Int32Array.from({ length: rows }, (_, row) =>
        perfect(tables[Number(arrays.readBigInt64LE(8 * row))].heap));
      answer({ message: "actions" }, inOrder([chosen]));
    }
  });
  stream.on("end", () => stream.end());
}

const server = new grpc.Server();
server.addService(ludus.GameServer.service, { Play: play });
server.bindAsync(`127.0.0.1:${port}`, grpc.ServerCredentials.createInsecure(), (error, bound) => {
  if (error) throw error;
  console.log(`nim at remote://127.0.0.1:${bound}/nim`);
});
