"use strict";
// Everything shown comes from the JSON in #data and is set as text, never as
// HTML: the corpus is not to be trusted.

const TERMS = [
  ["a", "query and key"],
  ["b", "query and distance"],
  ["c", "bias u and key"],
  ["d", "bias v and distance"],
];
const TOP_KEYS = 8;

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

function signed(value) {
  const size = Math.abs(value).toFixed(1);
  return Number(size) ? (value < 0 ? "−" : "+") + size : size;
}

// A token by itself, with white space made visible.
function label(piece) {
  const shown = piece.replace(/\n/g, "↵").replace(/\t/g, "⇥");
  return shown.trim() ? shown.trimEnd() : shown.replace(/ /g, "␣");
}

function bytes(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

// The attention that attention.py has packed.
class Attention {
  constructor(packed, numTokens) {
    Object.assign(this, packed);
    this.weights = bytes(packed.weights);
    this.distances = new Uint16Array(bytes(packed.distances).buffer);
    this.terms = new Int8Array(bytes(packed.terms).buffer);
    this.profile = bytes(packed.profile);
    this.onMemory = bytes(packed.on_memory);
    this.first = numTokens - packed.num_queries; // The oldest query.
    this.numHeads = packed.num_layers * packed.num_heads;
  }

  has(query) {
    return query >= this.first;
  }

  // The most attended keys of a head, as absolute positions.
  keys(query, head) {
    const count = this.num_keys;
    const row = (query - this.first) * this.numHeads + head;
    const keys = [];
    for (let i = 0; i < count; i++) {
      const weight = (this.weights[row * count + i] / 255) ** 2;
      if (!weight) continue;
      const terms = TERMS.map((_, term) => {
        const at = ((query - this.first) * 4 + term) * this.numHeads + head;
        return (this.terms[at * count + i] / 127) * this.scale(term, head);
      });
      keys.push({ at: query - this.distances[row * count + i], weight, terms });
    }
    return keys;
  }

  scale(term, head) {
    const layer = Math.floor(head / this.num_heads);
    return this.term_scales[term][layer][head % this.num_heads];
  }

  // Shares of a head's attention by distance, and the share on memory.
  shares(query, head) {
    const bins = this.bin_starts.length;
    const row = (query - this.first) * this.numHeads + head;
    const part = this.profile.subarray(row * bins, (row + 1) * bins);
    return {
      bins: Array.from(part, (value) => (value / 255) ** 2),
      memory: (this.onMemory[row] / 255) ** 2,
    };
  }

  // The head that looks most at single tokens in memory.
  sharpest() {
    const sums = new Float64Array(this.numHeads);
    this.onMemory.forEach((share, row) => {
      sums[row % this.numHeads] += share * this.weights[row * this.num_keys];
    });
    return sums.indexOf(Math.max(...sums));
  }

  name(head) {
    return `layer ${Math.floor(head / this.num_heads) + 1}, head ${(head % this.num_heads) + 1}`;
  }
}

// The coloured text, and the details of the token that is pointed at.
class Reader {
  constructor(text, tokens, details) {
    this.text = text;
    this.tokens = tokens;
    this.details = details;
    this.attention = new Attention(text.attention, text.num_tokens);
    this.head = this.attention.sharpest();
    this.isPinned = false;
    this.bits = text.nll.map((nll) => nll / Math.LN2);
    this.spans = text.tokens.map((piece, at) => this.span(piece, at));
    this.colour();
    tokens.append(...this.spans);
    tokens.addEventListener("mouseover", (event) => this.point(event, false));
    tokens.addEventListener("click", (event) => this.point(event, true));
    tokens.addEventListener("keydown", (event) => this.step(event));
    this.show(Math.max(1, text.num_tokens - Math.floor(text.segment_len / 2)));
    tokens.scrollTop = this.spans[this.at].offsetTop - tokens.clientHeight / 2;
  }

  span(piece, at) {
    const span = make("span", at ? "" : "before");
    span.dataset.at = at;
    span.id = `token-${at}`;
    span.setAttribute("role", "option");
    for (const part of piece.split(/(\n|\t)/)) {
      if (part === "\n" || part === "\t") span.append(make("i", "mark", label(part)));
      span.append(part);
    }
    return span;
  }

  colour() {
    const sorted = [...this.bits].sort((a, b) => a - b);
    const end = Math.max(2, Math.ceil(sorted[Math.floor(0.97 * (sorted.length - 1))]));
    document.getElementById("scale-end").textContent = end;
    this.bits.forEach((bits, i) => {
      const shade = 0.8 * Math.min(1, bits / end);
      this.spans[i + 1].style.setProperty("--surprise", shade.toFixed(3));
    });
  }

  point(event, isClick) {
    const span = event.target.closest("[data-at]");
    const at = span ? Number(span.dataset.at) : 0;
    if (!at || (this.isPinned && !isClick)) return;
    this.isPinned = isClick && !(this.isPinned && at === this.at);
    this.show(at);
  }

  step(event) {
    const last = this.text.num_tokens;
    const at = {
      ArrowRight: this.at + 1,
      ArrowLeft: this.at - 1,
      Home: 1,
      End: last,
      Escape: this.at,
    }[event.key];
    if (at === undefined || at < 1 || at > last) return;
    event.preventDefault();
    this.isPinned = event.key !== "Escape";
    this.show(at);
    this.spans[at].scrollIntoView({ block: "nearest" });
  }

  choose(head) {
    const hadFocus = this.details.contains(document.activeElement);
    this.head = head;
    this.show(this.at);
    if (hadFocus) this.details.querySelector(".heads .chosen button").focus();
  }

  // The token at a position, as its last query predicted it.
  show(at) {
    this.at = at;
    const query = at - 1;
    const has = this.attention.has(query);
    const keys = has ? this.attention.keys(query, this.head) : [];
    const most = Math.max(...keys.map((key) => key.weight), 1e-9);
    const seen = new Map(keys.map((key) => [key.at, Math.sqrt(key.weight / most)]));
    this.spans.forEach((span, i) => {
      span.classList.toggle("chosen", i === at);
      span.classList.toggle("read-last", i === query);
      span.setAttribute("aria-selected", i === at);
      const share = seen.get(i);
      if (share) span.style.setProperty("--seen", share.toFixed(2));
      else span.style.removeProperty("--seen");
    });
    this.tokens.setAttribute("aria-activedescendant", `token-${at}`);
    this.details.replaceChildren(...this.prediction(at), ...(has ? this.looks(query, keys) : this.untold()));
    const heads = this.details.querySelector(".heads");
    if (heads) {
      const chosen = heads.querySelector(".chosen");
      heads.scrollTop = this.scrolled ?? chosen.offsetTop - heads.clientHeight / 2;
      heads.addEventListener("scroll", () => { this.scrolled = heads.scrollTop; });
    }
  }

  prediction(at) {
    const title = make("h3", "", "Token ");
    title.append(make("code", "token", label(this.text.tokens[at])));
    const share = Math.exp(-this.text.nll[at - 1]);
    const said = `${this.bits[at - 1].toFixed(2)} bits: the model gave it ${percent(share)}. Position ${at}${this.isPinned ? ", pinned" : ""}.`;
    const bars = make("div", "bars alternatives");
    const rows = this.text.top_tokens[at - 1].map((token, i) => [
      this.text.symbols[token],
      Math.exp(this.text.top_log_probs[at - 1][i]),
    ]);
    const best = rows[0][1];
    for (const [piece, probability] of rows) {
      const kind = piece === this.text.tokens[at] ? " actual" : "";
      const bar = make("i", kind.trim());
      bar.style.width = `${(100 * probability) / best}%`;
      bars.append(make("code", `token${kind}`, label(piece)), bar, make("span", "", percent(probability)));
    }
    return [title, make("p", "", said), make("h4", "", "Likeliest tokens here"), bars];
  }

  untold() {
    return [make("p", "", `Attention is kept for the last ${this.attention.num_queries} tokens, so that the report stays small.`)];
  }

  looks(query, keys) {
    const heading = make("h4", "", "Where each head looked, by tokens back");
    return [heading, this.heads(query), make("h4", "", `What ${this.attention.name(this.head)} saw`), this.keyTable(query, keys)];
  }

  heads(query) {
    const starts = this.attention.bin_starts;
    const table = make("table");
    const top = make("tr");
    top.append(make("th", "", "head"), ...starts.map((start) => make("th", "", String(start + 1))), make("th", "", "memory"));
    table.append(make("thead"), make("tbody"));
    table.tHead.append(top);
    for (let head = 0; head < this.attention.numHeads; head++) {
      const { bins, memory } = this.attention.shares(query, head);
      const row = make("tr", head === this.head ? "chosen" : "");
      row.title = this.attention.name(head);
      const [layer, number] = [Math.floor(head / this.attention.num_heads) + 1, (head % this.attention.num_heads) + 1];
      const chooser = make("button", "", `${layer} · ${number}`);
      chooser.setAttribute("aria-label", row.title);
      chooser.setAttribute("aria-pressed", head === this.head);
      const first = make("td");
      first.append(chooser);
      row.append(first);
      bins.forEach((share, i) => {
        const cell = make("td", "cell");
        cell.style.setProperty("--mass", Math.sqrt(share).toFixed(2));
        const range = i + 1 < starts.length ? `${starts[i] + 1} to ${starts[i + 1]}` : `${starts[i] + 1} or more`;
        cell.title = `${range} back: ${percent(share)}`;
        row.append(cell);
      });
      row.append(make("td", "", percent(memory)));
      row.addEventListener("click", () => this.choose(head));
      table.tBodies[0].append(row);
    }
    const box = make("div", "heads");
    box.append(table);
    return box;
  }

  keyTable(query, keys) {
    const kinds = TERMS.map((term, i) => [...term, i]).filter((term) => this.attention.has_term[term[2]]);
    const table = make("table");
    const top = make("tr");
    top.append(make("th", "", "token"), make("th", "number", "back"), make("th", "", "in"), make("th", "number", "weight"));
    for (const [name, meaning] of kinds) {
      const head = make("th", "number", `(${name})`);
      head.title = meaning;
      top.append(head);
    }
    table.append(make("thead"), make("tbody"));
    table.tHead.append(top);
    const shown = keys.slice(0, TOP_KEYS);
    const largest = Math.max(...shown.flatMap((key) => key.terms.map(Math.abs)), 1e-9);
    const start = query - (query % this.text.segment_len);
    for (const key of shown) {
      const row = make("tr");
      const token = make("td");
      const piece = key.at < 0 ? "before the text" : label(this.text.tokens[key.at]);
      token.append(make("code", "token", piece));
      row.append(token, make("td", "number", String(query - key.at + 1)));
      row.append(make("td", "", key.at < start ? "memory" : "segment"), make("td", "number", percent(key.weight)));
      for (const [, , index] of kinds) {
        const value = key.terms[index];
        const cell = make("td", `number ${value < 0 ? "negative" : "positive"}`, signed(value));
        cell.style.setProperty("--size", ((0.7 * Math.abs(value)) / largest).toFixed(2));
        row.append(cell);
      }
      table.tBodies[0].append(row);
    }
    const box = make("div", "keys");
    const meanings = kinds.map(([name, meaning]) => `(${name}) ${meaning}`).join(", ");
    box.append(table, make("p", "", `Terms of the score: ${meanings}; each less its mean over all keys that the token sees.`));
    return box;
  }
}

// One figure after the other, so that the page answers in between.
async function draw(figures) {
  Bokeh.set_log_level("warn");
  for (const [group, items] of Object.entries(figures)) {
    for (const [index, item] of items.entries()) {
      await Bokeh.embed.embed_item(item, `${group}-${index}`);
    }
  }
  document.body.dataset.drawn = "true";
}

const data = JSON.parse(document.getElementById("data").textContent);
if (data.text) {
  new Reader(data.text, document.getElementById("tokens"), document.getElementById("details"));
}
draw(data.figures);
