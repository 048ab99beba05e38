// Questions: which heads link two tokens, and which head is the most striking.

import { Maps } from "./bundle.js";
import { quantile } from "./colour.js";
import { pictured } from "./image.js";

const CLEAR = 0.05; // a pattern's score above its null level, at least
export const CLEARLY = `Clearly above: past the 95 % band of the null samples, and more than ${CLEAR} above their mean`;

/**
 * A head's attention from a query to a key beside its other pairs: the numbers of `workbench.find_link`; null without a matrix of tokens.
 * `written` has the norms of values after the output projection where the file has them, as `value-output` per pair.
 * Of a pooled matrix those of the cells that hold them.
 */
export function linkOf(one, layer, head, query, key) {
  const maps = one.maps(layer);
  if (!maps || one.at(layer) !== one || one.asks || head >= maps.heads || (maps.rows === 1 && one.kinds[query] !== "class") || maps.hides(query, key)) return null;
  const [place, own] = [maps.rowOf(query), maps.columnOf(key)];
  const { real } = one;
  const attention = maps.at(head, place, own);
  const found = { layer, head, attention, ratio: attention / maps.even([query], real), drawn: [] };
  const alike = [];
  const middle = (bin, bins) => Math.floor(((bin + 0.5) * maps.tokens) / bins); // of a pooled matrix; else the token itself
  for (let row = 0; row < maps.rows; row++) {
    const token = maps.rows === 1 ? query : middle(row, maps.rows);
    if (!real[token]) continue;
    const uniform = maps.even([token], real);
    for (let column = 0; column < maps.columns; column++) {
      if ((row === place && column === own) || (maps.causal && column > row) || !real[middle(column, maps.columns)]) continue;
      const weight = maps.at(head, row, column); // 0 where float16 has nothing smaller
      found.drawn.push(weight / uniform);
      if (column - row === own - place) alike.push(weight);
    }
  }
  const lengths = one.norms(layer, "written") ?? one.norms(layer, "v");
  const count = lengths?.shape[1];
  const first = lengths ? Math.floor((head * lengths.shape[0]) / layer.heads) * count : 0; // grouped heads share values
  const parts = Array.from({ length: maps.columns }, (_, column) => (count === maps.columns ? maps.at(head, place, column) * lengths.values[first + column] : NaN));
  found.written = parts[own] / parts.reduce((sum, part) => sum + part, 0);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  found.sameDistance = mean(alike);
  found.p = (1 + found.drawn.filter((ratio) => ratio >= found.ratio).length) / (1 + found.drawn.length);
  found.nullMean = mean(found.drawn);
  found.nullHigh = quantile(found.drawn, 0.975);
  return found;
}

/** The query and the key that are asked about, or null. */
export function asked({ tokens: [first], link, direction }) {
  if (link === null) return null;
  return direction === "to" ? { query: link, key: first } : { query: first, key: link };
}

/** The attention of the head that is looked at on a link of a pooled matrix, where a kernel has sent it token by token; else null. */
export function exactLink({ part, one, layer, head }, { query, key }) {
  if (part?.id !== one.id || part.layer !== layer || part.head !== head || part.side !== part.count) return null;
  const [row, column] = [query - part.top, key - part.left];
  if (Math.min(row, column) < 0 || Math.max(row, column) >= part.count) return null;
  return new Maps(part.bits, [1, part.side, part.side], part.count).at(0, row, column);
}

/** Every head by its attention on the link that is asked about, strongest first; heads whose mask hides the key are left out. */
export function ranked(state) {
  const { query, key } = asked(state);
  const question = [state.input, query, key].join();
  if (state.question?.key !== question) {
    const heads = allHeads(state.bundle).map(({ layer, head }) => linkOf(state.one, layer, head, query, key));
    state.question = { key: question, heads: heads.filter(Boolean).sort((a, b) => b.attention - a.attention) };
  }
  return state.question.heads;
}

/** The p below which one of so many heads links two tokens clearly: 0.05, divided by their number (Bonferroni). */
export function clearly(heads) {
  return 0.05 / heads.length;
}

/** A head's score of a pattern beside its null level, and whether it is clearly above. */
function scoreOf(metric, one, layer, head) {
  const [score, level, high] = ["value", "null_mean", "null_high"].map((which) => one.metric(metric.name, which, layer, head));
  return { metric, layer, head, score, level, ratio: score / level, above: score > (Number.isFinite(high) ? high : level) && score - level > CLEAR };
}

/** The patterns of a head that are clearly above their null level, the farthest first. */
export function patternsAbove({ metrics }, one, layer, head) {
  return metrics
    .filter((metric) => metric.short && metric.null)
    .map((metric) => scoreOf(metric, one, layer, head))
    .filter(({ above }) => above)
    .sort((a, b) => b.score - b.level - (a.score - a.level));
}

function allHeads({ layers }) {
  return layers.flatMap((layer) => Array.from({ length: layer.heads }, (_, head) => ({ layer, head })));
}

/** The head with the highest score of a metric, of a pattern one that is clearly above its null level where there is one; undefined without scores. */
export function leading(metric, bundle, one) {
  const scores = allHeads(bundle).map(({ layer, head }) => scoreOf(metric, one, layer, head)).filter(({ score }) => Number.isFinite(score));
  return scores.sort((a, b) => b.above - a.above || b.score - a.score)[0];
}

/** The metrics that words name, the best match first: a whole name, else a part of one. */
function metricsNamed(metrics, words) {
  const names = metrics.map(({ name, short, label }) => [short, label, name.replaceAll("_", " ")].map((each) => each.toLowerCase()));
  const whole = metrics.filter((_, place) => names[place].includes(words));
  return whole.length ? whole : metrics.filter((_, place) => names[place].some((name) => name.includes(words)));
}

/**
 * The heads that are searched for, as "layer.head": by their number, by a bound on a metric ("entropy > 0.1", on `bar` without a name),
 * or by part of a metric's name: those clearly above its null level, and the one with the highest score. Null for an empty search.
 */
export function headsNamed({ bundle, one }, typed, bar) {
  const words = typed.trim().toLowerCase();
  if (!words) return null;
  const heads = allHeads(bundle);
  const keys = (found) => new Set(found.map(({ layer, head }) => `${layer.index}.${head}`));
  const [, name, side, bound] = words.match(/^(.*?)\s*([<>])=?\s*(-?\d*\.?\d+)$/) ?? [];
  if (side) {
    const metric = name ? metricsNamed(bundle.metrics, name)[0] : bar;
    const value = ({ layer, head }) => (metric ? one.metric(metric.name, "value", layer, head) : NaN);
    return keys(heads.filter((each) => (side === ">" ? value(each) > Number(bound) : value(each) < Number(bound))));
  }
  const [, inLayer, number, only] = words.match(/^(?:l(?:ayer)?\s*)?(\d+)(?:[.,\s]*(?:h(?:ead)?)?\s*(\d+))?$|^h(?:ead)?\s*(\d+)$/) ?? [];
  if (inLayer ?? only) return keys(heads.filter(({ layer, head }) => String(layer.index) === (inLayer ?? String(layer.index)) && String(head) === (number ?? only ?? String(head))));
  return keys(metricsNamed(bundle.metrics, words).flatMap((metric) => {
    const pattern = metric.short && metric.null;
    return [leading(metric, bundle, one), ...heads.filter(({ layer, head }) => pattern && scoreOf(metric, one, layer, head).above)].filter(Boolean);
  }));
}

/** The heads whose patterns are the largest multiples of their null level: the first of each pattern, then the others. */
export function striking(bundle, one) {
  const drawn = bundle.layers.filter((layer) => !layer.without);
  const looking = drawn.filter((layer) => pictured(one.at(layer))); // words that look at an image come before its own tower
  const found = (looking.length ? looking : drawn).flatMap((layer) => Array.from({ length: layer.heads }, (_, head) => patternsAbove(bundle, one, layer, head)).flat());
  found.sort((a, b) => b.ratio - a.ratio);
  const firsts = found.filter(({ metric }, place) => found.findIndex((other) => other.metric === metric) === place);
  return [...new Set([...firsts, ...found])];
}

/** The query and key of a head with the largest multiple of uniform attention; of an image among words, a word and a patch. */
export function strongest(input, layer, head) {
  const one = input.at(layer);
  if (one.asks) return null;
  const maps = one.maps(layer);
  const looks = pictured(one);
  let best = null;
  for (let row = 0; row < maps.rows && maps.rows > 1 && !maps.pooled; row++) {
    if (!one.real[row] || (looks && one.kinds[row] === "patch")) continue;
    const uniform = maps.even([row], one.real);
    for (let key = 0; key < maps.columns; key++) {
      const ratio = maps.at(head, row, key) / uniform;
      if (key !== row && !(looks && one.kinds[key] !== "patch") && !(best?.ratio >= ratio)) best = { query: row, key, ratio };
    }
  }
  return best;
}
