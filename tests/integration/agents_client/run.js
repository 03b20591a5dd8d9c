// Runs one scenario: `node run.js FILE SCENARIO ADDRESS [OPTIONS]`. Prints one line of JSON, or exits with 1 and says why.

const [file, name, address, options = "{}"] = process.argv.slice(2);

const warnings = [];
console.warn = console.error = (...args) => warnings.push(args.map(String).join(" "));

function end(code, stream, text) {
  stream.write(`${text}\n`, () => process.exit(code));
}

function fail(error) {
  const said = warnings.map((each) => `\nwarned: ${each}`).join("");
  end(1, process.stderr, `${file} ${name}: ${error?.stack ?? error}${said}`);
}

process.on("unhandledRejection", fail);
process.on("uncaughtException", fail);

try {
  const scenarios = await import(`./scenarios/${file}.js`);
  const result = await scenarios[name](address, JSON.parse(options));
  end(0, process.stdout, JSON.stringify({ result, warnings }));
} catch (error) {
  fail(error);
}
