// Runs one program: reads it as the first line of stdin, and talks to the server in lines of JSON.
import { registerHooks, stripTypeScriptTypes } from "node:module";

const { stdin, stdout, exit } = Deno;
const [Encoder, Decoder, Url] = [TextEncoder, TextDecoder, URL];

// The globals that stay: those of the language itself.
const LANGUAGE = new Set(
  `Object Function Array Number parseFloat parseInt Infinity NaN undefined Boolean String Symbol Date Promise RegExp Error
  AggregateError EvalError RangeError ReferenceError SyntaxError TypeError URIError SuppressedError globalThis JSON Math Intl
  ArrayBuffer Uint8Array Int8Array Uint16Array Int16Array Uint32Array Int32Array Float16Array Float32Array Float64Array
  Uint8ClampedArray BigUint64Array BigInt64Array DataView Map BigInt Set Iterator WeakMap WeakSet WeakRef Proxy Reflect
  FinalizationRegistry decodeURI decodeURIComponent encodeURI encodeURIComponent escape unescape eval isFinite isNaN
  DisposableStack AsyncDisposableStack`.split(/\s+/),
);
const LONGEST_ERROR = 4000;

class SerializationError extends Error {
  name = "SerializationError";
}

// Frames

const lines = readLines();
let limit = Infinity;

async function* readLines() {
  const decoder = new Decoder();
  let parts = [];
  for await (const chunk of stdin.readable) {
    const [first, ...others] = decoder.decode(chunk, { stream: true }).split("\n");
    parts.push(first);
    for (const next of others) {
      yield JSON.parse(parts.join(""));
      parts = [next];
    }
  }
  exit(0);
}

// JSON.stringify leaves out or changes values that JSON does not have.
function check(_, value) {
  const type = typeof value;
  if (["function", "symbol", "bigint"].includes(type) || (type === "number" && !Number.isFinite(value))) {
    throw new SerializationError(`JSON has no ${type} such as ${String(value).slice(0, 100)}`);
  }
  const prototype = type === "object" && value !== null && !Array.isArray(value) && Object.getPrototypeOf(value);
  if (prototype && prototype !== Object.prototype) {
    throw new SerializationError(`JSON has no ${prototype.constructor?.name ?? "such object"}`);
  }
  return value;
}

function send(frame) {
  let bytes = new Encoder().encode(JSON.stringify(frame, check) + "\n");
  if (bytes.length > limit) throw new SerializationError(`${bytes.length} bytes of JSON are over the limit of ${limit}`);
  while (bytes.length > 0) bytes = bytes.subarray(stdout.writeSync(bytes));
}

// The values that the program is given

const waiting = new Map();
let calls = 0;

function build(given) {
  if (!("call" in given)) return given.value;
  return (...args) => {
    const id = ++calls;
    const call = {};
    call.answer = new Promise((resolve, reject) => {
      send({ type: "call", id, function: given.call, args });
      Object.assign(call, { resolve, reject });
    });
    if (call.resolve) waiting.set(id, call);
    return call.answer.finally(() => waiting.delete(id));
  };
}

const buildAll = (given) => Object.fromEntries(Object.entries(given).map(([name, each]) => [name, build(each)]));

function format(value) {
  if (typeof value === "string") return value;
  if (value instanceof Error) return show(value);
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return String(value);
  }
}

const log = (level) => (...args) => send({ type: "log", level, text: args.map(format).join(" ") });

function show(error) {
  let text = "an error that cannot be shown";
  try {
    text = error instanceof Error ? error.stack || `${error.name}: ${error.message}` : `${format(error)} was thrown`;
  } catch {
    // The getters of the error throw.
  }
  return String(text).replaceAll("sandbox:", "").slice(0, LONGEST_ERROR);
}

// Modules

// The source of each URL. The object has no prototype, by which a program could change what is found.
const sources = Object.create(null);

const locate = (name) => new Url(`sandbox:${name}`).href;

function resolve(specifier, { parentURL }) {
  let name = specifier;
  if (/^\.\.?\//.test(specifier)) {
    const folder = parentURL === locate(filename) ? "" : parentURL.replace(/^sandbox:/, "");
    name = "." + decodeURI(new Url(specifier, `file:///${folder}`).pathname);
  } else if (specifier.startsWith("plait:") && parentURL !== import.meta.url && parentURL !== "sandbox:plait:start") {
    name = "refused";
  } else if (specifier === "plait:program") {
    name = filename;
  }
  return { url: locate(name), shortCircuit: true };
}

function load(url) {
  const source = sources[url];
  // Deno makes a TypeError of this error, with its name in the message.
  if (source === undefined) throw Object.assign(new Error(`there is no module "${url.slice(8)}"`), { name: "" });
  return { format: "module", source, shortCircuit: true };
}

// Deno reads the file that the last comment of this kind names.
const add = (name, source) => (sources[locate(name)] = `${source}\n//# sourceMappingURL=`);

function transpile(source, name) {
  if (program.language !== "typescript") return source;
  try {
    return stripTypeScriptTypes(source, { mode: "strip" });
  } catch {
    try {
      return stripTypeScriptTypes(source, { mode: "transform" });
    } catch (error) {
      throw new SyntaxError(error.message.replaceAll("file:///stripTypeScriptTypes.ts", name));
    }
  }
}

// The program

function end(status, value, error) {
  const frame = { type: "end", status, value, error: error === undefined ? undefined : show(error) };
  try {
    send(frame);
  } catch (failure) {
    send({ ...frame, status: "error", value: undefined, error: show(failure) });
  }
  exit(0);
}

function fail(error) {
  const isMemory = error instanceof RangeError && /allocation failed/.test(error.message);
  end(isMemory ? "memory" : isLinked ? "error" : "link_error", undefined, error);
}

async function readAnswers() {
  for await (const { id, value, error } of lines) {
    const call = waiting.get(id);
    if (error === undefined) call?.resolve(value);
    else call?.reject(Object.assign(new Error(error.message), { name: error.name }));
  }
}

async function run({ fn, args }) {
  const { program: exports } = await import("plait:start");
  if (!(fn in exports)) {
    isLinked = false;
    throw new ReferenceError(`the program has no export named "${fn}"`);
  }
  if (typeof exports[fn] !== "function" && args.length > 0) throw new TypeError(`the export "${fn}" is not a function`);
  const value = await (typeof exports[fn] === "function" ? exports[fn](...args) : exports[fn]);
  // A call whose answer the program does not await is finished as well.
  while (waiting.size > 0) await Promise.allSettled([...waiting.values()].map((call) => call.answer));
  end("success", value);
}

registerHooks({ resolve, load });
// Deno needs files for the first of these, and may not open any from here on.
Deno.addSignalListener("SIGCONT", exit);
Deno.removeSignalListener("SIGCONT", exit);
send({ type: "ready" });
const program = (await lines.next()).value;
const filename = program.filename;
let isLinked = false;
limit = program.limit;
addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  fail(event.reason);
});
// Stacks do not show where the server is installed, whatever the program does to the functions of arrays and texts.
const [{ apply }, describe, begins] = [Reflect, Error.prototype.toString, String.prototype.startsWith];
function showStack(error, sites) {
  let text = apply(describe, error, []);
  for (let at = 0; at < sites.length; at++) {
    const site = sites[at];
    const file = site.getFileName();
    const name = site.getFunctionName();
    if (typeof file !== "string" || !apply(begins, file, ["sandbox:"])) continue;
    const place = `${file}:${site.getLineNumber()}:${site.getColumnNumber()}`;
    text += `\n    at ${site.isAsync() ? "async " : ""}${name ? `${name} (${place})` : place}`;
  }
  return text;
}
Object.defineProperty(Error, "prepareStackTrace", { get: () => showStack, set() {} });
// Deno finds its hooks by way of arrays, which see accessors that a program adds.
for (const each of [Object, Array]) Object.preventExtensions(each.prototype);
for (const name of Object.getOwnPropertyNames(globalThis)) {
  if (!LANGUAGE.has(name)) Reflect.deleteProperty(globalThis, name);
}
const imported = Symbol.for("plait.imports");
const started = Symbol.for("plait.started");
globalThis[imported] = {};
globalThis[started] = () => {
  delete globalThis[started];
  isLinked = true;
};
globalThis.console = Object.fromEntries(["log", "info", "warn", "error", "debug"].map((level) => [level, log(level)]));
globalThis.report = (value) => send({ type: "report", value });
Object.assign(globalThis, buildAll(program.globals));
readAnswers();
try {
  add("plait:started", `globalThis[Symbol.for("plait.started")]()`);
  add("plait:start", `import "plait:started"; export * as program from "plait:program";`);
  for (const [name, source] of Object.entries(program.modules)) add(name, transpile(source, name));
  for (const [specifier, given] of Object.entries(program.imports)) {
    globalThis[imported][specifier] = buildAll(given);
    const place = `globalThis[Symbol.for("plait.imports")][${JSON.stringify(specifier)}]`;
    const exported = Object.keys(given).map((name, at) => {
      const quoted = JSON.stringify(name);
      return `const v${at} = ${place}[${quoted}]; export { v${at} as ${quoted} };`;
    });
    add(specifier, exported.join("\n"));
  }
  add(filename, transpile(program.source, filename));
  await run(program.execute);
} catch (error) {
  fail(error);
}
