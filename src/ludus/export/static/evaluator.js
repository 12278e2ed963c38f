// Evaluates a network that `ludus export --page` wrote: vectors and planes, convolutions, linear layers, an LSTM and one
// choice. Sums are kept in double precision, so results differ from PyTorch's by rounding alone.

const ACTIVATIONS = {
  tanh: Math.tanh,
  relu: (x) => (x > 0 ? x : 0),
  silu: (x) => x / (1 + Math.exp(-x)),
  elu: (x) => (x > 0 ? x : Math.expm1(x)),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
};

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

export class Network {
  constructor(facts) {
    this.facts = facts;
    this.activate = ACTIVATIONS[facts.activation];
    const bytes = Uint8Array.from(atob(facts.values), (character) => character.charCodeAt(0));
    this.values = new Float32Array(bytes.buffer);
    this.reset();
  }

  // A new episode begins.
  reset() {
    const size = this.facts.memory?.size ?? 0;
    this.hidden = new Array(size).fill(0);
    this.cell = new Array(size).fill(0);
  }

  // Probabilities of all options. `observation`: part name -> numbers; `legal`: one flag per option.
  probabilities(observation, legal) {
    const logits = this.logits(observation);
    const highest = Math.max(...logits.filter((_, option) => legal[option]));
    const weights = logits.map((logit, option) => (legal[option] ? Math.exp(logit - highest) : 0));
    const total = weights.reduce((sum, one) => sum + one, 0);
    return weights.map((one) => one / total);
  }

  logits(observation) {
    let features = [];
    for (const part of this.facts.parts) {
      const numbers = Array.from(observation[part.name], (number) => number / part.scale);
      features = features.concat(part.convolutions ? this.convolved(part, numbers) : numbers);
    }
    for (const layer of this.facts.trunk) features = this.linear(layer, features).map(this.activate);
    if (this.facts.memory) features = this.remembered(features);
    return this.linear(this.facts.head, features);
  }

  linear(layer, inputs) {
    const [rows, columns] = layer.weight.shape;
    const outputs = new Array(rows);
    for (let row = 0; row < rows; row++) {
      let sum = layer.bias === null ? 0 : this.values[layer.bias.start + row];
      const start = layer.weight.start + row * columns;
      for (let column = 0; column < columns; column++) sum += this.values[start + column] * inputs[column];
      outputs[row] = sum;
    }
    return outputs;
  }

  // 3x3 convolutions with a border of zeros, each of which halves the planes or keeps their size.
  convolved(part, numbers) {
    let [channels, height, width] = part.shape;
    for (const { weight, bias, stride } of part.convolutions) {
      const [outChannels, , side] = weight.shape;
      const [outHeight, outWidth] = [Math.ceil(height / stride), Math.ceil(width / stride)];
      const outputs = new Array(outChannels * outHeight * outWidth);
      let at = 0;
      for (let out = 0; out < outChannels; out++) {
        for (let y = 0; y < outHeight; y++) {
          for (let x = 0; x < outWidth; x++) {
            let sum = this.values[bias.start + out];
            for (let channel = 0; channel < channels; channel++) {
              for (let down = 0; down < side; down++) {
                const row = y * stride + down - 1;
                if (row < 0 || row >= height) continue;
                for (let right = 0; right < side; right++) {
                  const column = x * stride + right - 1;
                  if (column < 0 || column >= width) continue;
                  const kernel = ((out * channels + channel) * side + down) * side + right;
                  sum += this.values[weight.start + kernel] * numbers[(channel * height + row) * width + column];
                }
              }
            }
            outputs[at++] = this.activate(sum);
          }
        }
      }
      [numbers, channels, height, width] = [outputs, outChannels, outHeight, outWidth];
    }
    return numbers;
  }

  remembered(inputs) {
    const { inputs: projection, recurrent, size } = this.facts.memory;
    const before = this.linear(recurrent, this.hidden);
    const gates = this.linear(projection, inputs).map((gate, number) => gate + before[number]);
    for (let unit = 0; unit < size; unit++) {
      const [enter, keep, next, leave] = [0, 1, 2, 3].map((gate) => gates[gate * size + unit]);
      this.cell[unit] = sigmoid(keep) * this.cell[unit] + sigmoid(enter) * Math.tanh(next);
      this.hidden[unit] = sigmoid(leave) * Math.tanh(this.cell[unit]);
    }
    return [...this.hidden];
  }
}

// The option whose share of [0, 1) holds the uniform number; without one, the most probable.
export function choose(probabilities, uniform = null) {
  if (uniform === null) return probabilities.indexOf(Math.max(...probabilities));
  let sum = 0;
  for (let option = 0; option < probabilities.length; option++) {
    sum += probabilities[option];
    if (uniform < sum) return option;
  }
  return probabilities.findLastIndex((probability) => probability > 0);
}

// By its series, or for large numbers by the continued fraction of its complement.
function erf(x) {
  const size = Math.abs(x);
  if (size < 2.5) {
    let [term, sum] = [size, size];
    for (let n = 1; Math.abs(term) > 1e-17 * sum; n++) {
      term *= (-size * size) / n;
      sum += term / (2 * n + 1);
    }
    return (Math.sign(x) * 2 * sum) / Math.sqrt(Math.PI);
  }
  let fraction = 0;
  for (let n = 60; n > 0; n--) fraction = n / 2 / (size + fraction);
  return Math.sign(x) * (1 - Math.exp(-size * size) / (Math.sqrt(Math.PI) * (size + fraction)));
}
