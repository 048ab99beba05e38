// A small vision transformer that the page runs itself, and its result as a bundle.

import { rounded, writeBundle } from "./bundle.js";

/** The error function to 1.5e-7 (Abramowitz and Stegun 1964, eq. 7.1.26). */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t * Math.exp(-x * x);
  return Math.sign(x) * (1 - tail);
}

/** x Wᵀ + b of every row; W is (out, in). */
function linear(x, weight, bias) {
  const [out, width] = [bias.length, weight.length / bias.length];
  const found = new Float64Array((x.length / width) * out);
  for (let row = 0, at = 0; row < x.length; row += width) {
    for (let o = 0; o < out; o++, at++) {
      let sum = bias[o];
      for (let i = 0, w = o * width; i < width; i++, w++) sum += x[row + i] * weight[w];
      found[at] = sum;
    }
  }
  return found;
}

/** Every row less its mean, over its deviation, times a weight, plus a bias. */
function norm(x, weight, bias, epsilon) {
  const width = weight.length;
  const found = new Float64Array(x.length);
  for (let row = 0; row < x.length; row += width) {
    const part = x.subarray(row, row + width);
    const mean = part.reduce((sum, value) => sum + value, 0) / width;
    const root = Math.sqrt(part.reduce((sum, value) => sum + (value - mean) ** 2, 0) / width + epsilon);
    for (let i = 0; i < width; i++) found[row + i] = ((part[i] - mean) / root) * weight[i] + bias[i];
  }
  return found;
}

function softmax(values) {
  const most = values.reduce((top, value) => Math.max(top, value), -Infinity);
  const powers = values.map((value) => Math.exp(value - most));
  const sum = powers.reduce((all, value) => all + value, 0);
  return powers.map((value) => value / sum);
}

const added = (a, b) => a.map((value, i) => value + b[i]);

/** Patches of an image (channel, row, column) as tokens, row by row. */
function embedded(pixels, [channels, height, width], weight, bias) {
  const side = Math.sqrt(weight.length / bias.length / channels);
  const patches = [];
  for (let y = 0; y < height; y += side) {
    for (let x = 0; x < width; x += side) {
      for (let c = 0; c < channels; c++) for (let dy = 0; dy < side; dy++) for (let dx = 0; dx < side; dx++) patches.push(pixels[(c * height + y + dy) * width + x + dx]);
    }
  }
  return linear(patches, weight, bias);
}

/** Queries, keys and values (token, 3 × width) of a layer by head, and its attention (head, query, key) and output. */
function attend(qkv, heads, count) {
  const width = qkv.length / count / 3;
  const size = width / heads;
  const scale = 1 / Math.sqrt(size);
  const [q, k, v] = [0, 1, 2].map((site) => Float32Array.from({ length: count * width }, (_, i) => {
    const [head, token, feature] = [Math.floor(i / (count * size)), Math.floor(i / size) % count, i % size];
    return qkv[(token * 3 + site) * width + head * size + feature];
  }));
  const attention = new Float32Array(heads * count * count);
  const output = new Float64Array(count * width);
  for (let head = 0; head < heads; head++) {
    for (let query = 0; query < count; query++) {
      const from = (head * count + query) * size;
      const logits = new Float64Array(count);
      for (let key = 0; key < count; key++) for (let i = 0; i < size; i++) logits[key] += scale * q[from + i] * k[(head * count + key) * size + i];
      const row = softmax(logits);
      attention.set(row, (head * count + query) * count);
      for (let key = 0; key < count; key++) for (let i = 0; i < size; i++) output[query * width + head * size + i] += row[key] * v[(head * count + key) * size + i];
    }
  }
  return { q, k, v, attention, output, size, scale };
}

/** Norms of the values after the output projection (out, in), by head and token. */
function writtenNorms(v, size, count, weight) {
  const width = Math.sqrt(weight.length);
  return Float32Array.from({ length: v.length / size }, (_, row) => {
    const [value, first] = [v.subarray(row * size, (row + 1) * size), Math.floor(row / count) * size];
    return Math.hypot(...Array.from({ length: width }, (_, out) => value.reduce((sum, part, i) => sum + part * weight[out * width + first + i], 0)));
  });
}

/** All layers of a network on a normalised image (channel, row, column), and the probabilities of its classes. */
export function runNetwork({ heads, epsilon, depth, shape }, weight, pixels) {
  const patches = embedded(pixels, shape, weight("patch_embed.proj.weight"), weight("patch_embed.proj.bias"));
  let x = added(Float64Array.from([...weight("cls_token"), ...patches]), weight("pos_embed"));
  const width = weight("cls_token").length;
  const count = x.length / width;
  const layers = [];
  for (let layer = 0; layer < depth; layer++) {
    const own = (name) => weight(`blocks.${layer}.${name}`);
    const pair = (name) => [own(`${name}.weight`), own(`${name}.bias`)];
    const found = attend(linear(norm(x, ...pair("norm1"), epsilon), ...pair("attn.qkv")), heads, count);
    x = added(x, linear(found.output, ...pair("attn.proj")));
    const hidden = linear(norm(x, ...pair("norm2"), epsilon), ...pair("mlp.fc1")).map((value) => 0.5 * value * (1 + erf(value / Math.SQRT2)));
    x = added(x, linear(hidden, ...pair("mlp.fc2")));
    layers.push({ ...found, written: writtenNorms(found.v, found.size, count, own("attn.proj.weight")) });
  }
  const logits = linear(norm(x.subarray(0, width), weight("norm.weight"), weight("norm.bias"), epsilon), weight("head.weight"), weight("head.bias"));
  return { layers, count, probabilities: softmax(logits) };
}

/** The bundle of an image that was painted: what its network does on it, without what is measured. */
export function paintedBundle(bundle, card, { data, width, height }) {
  const { network } = bundle;
  const { mean, std, shape } = network;
  const pixels = Float32Array.from({ length: shape[0] * width * height }, (_, i) => {
    const channel = Math.floor(i / (width * height));
    return (data[4 * (i % (width * height)) + channel] / 255 - mean[channel]) / std[channel];
  });
  const { layers, count, probabilities } = runNetwork(network, (name) => bundle.weight(name), pixels);
  const order = [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]);
  const arrays = {
    "inputs.0.image": [Uint8Array.from({ length: 3 * width * height }, (_, i) => data[4 * Math.floor(i / 3) + (i % 3)]), [height, width, 3]],
    "inputs.0.prediction.probability": [Float32Array.from(order, (place) => probabilities[place]), [1, order.length]],
    "inputs.0.prediction.actual": [new Float32Array([NaN]), [1]],
  };
  const { heads } = network;
  const errors = {};
  const round = (name, values, side) => {
    const { bits, error } = rounded(values);
    arrays[name] = [bits, [heads, count, side]];
    errors[name] = error;
  };
  layers.forEach(({ attention, size, scale, written, ...sites }, place) => {
    const start = `inputs.0.layers.${bundle.layers[place].index}`;
    round(`${start}.attn`, attention, count);
    arrays[`${start}.scale`] = [new Float64Array(heads).fill(scale), [heads]];
    arrays[`${start}.norms.written`] = [written, [heads, count]];
    for (const site of ["q", "k", "v"]) {
      const lengths = Float32Array.from({ length: heads * count }, (_, row) => Math.hypot(...sites[site].subarray(row * size, (row + 1) * size)));
      arrays[`${start}.norms.${site}`] = [lengths, [heads, count]];
      if (site !== "v") round(`${start}.${site}`, sites[site], size);
    }
  });
  const prediction = { of: "class", outcomes: [order.map((place) => network.classes[place])], actual: [""] };
  const input = { ...card, id: "painting", prediction, address: {} };
  return writeBundle({ ...bundle.header, unmeasured: true, inputs: [input], metrics: [], by_layer: [], spectra: [], ablations: {}, removal: "", cards: null, network: null, max_error: errors }, arrays);
}
