import { execFile } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";

const CLIENT = fileURLToPath(new URL("..", import.meta.url));
const MODULES = join(CLIENT, "node_modules");
const folder = mkdtempSync(join(tmpdir(), "plait-client-"));
const packed = join(folder, "package");
let tarball: string;

/** The files of a project; each imports another of the package's entries. */
const FILES = {
  "node.ts": `
    import { PlaitError, ThreadClient, bindText } from "plait-client";
    import type { TextChange } from "plait-client";
    const room = new ThreadClient<{ note: string }>({ kind: "note", name: "a", connect: false });
    export const note: string | undefined = room.state?.note;
    export const stop: () => void = room.onText("/note", ({ text, edits }: TextChange) => void [text, edits[0]?.at]);
    export const [bind, ErrorClass]: [typeof bindText, typeof PlaitError] = [bindText, PlaitError];
    // @ts-expect-error The state is readonly.
    room.waitFor((state) => (state.note = ""));
  `,
  "page.ts": `
    import { ThreadClient, bindText } from "plait-client";
    const room = new ThreadClient({ kind: "note", name: "a", connect: false });
    // @ts-expect-error This is no element.
    export const bound = bindText("textarea", room, "/note");
  `,
  "react.ts": `
    import { useText, useThread, useThreadState } from "plait-client/react";
    export function useNote() {
      const room = useThread<{ note: string }>({ kind: "note", name: "a" });
      const note: string | undefined = useThreadState(room, (state) => state?.note);
      return [note, useText] as const;
    }
  `,
  "room.ts": `
    import { Room, useRoom, useThreadState } from "plait-client/react";
    import { store } from "plait-client/store";
    // As \`plait types\` writes it.
    // @ts-ignore
    declare module "plait-client" {
      interface Kinds {
        note: { state: { text: string }; rpcs: { clear(): void }; events: {} };
      }
    }
    export function useNote() {
      const room = useRoom("note");
      // @ts-expect-error There is no such kind.
      useRoom("notes");
      const text: string = useThreadState(room, (state) => state.text);
      return [text, Room, store(room, (state) => state.text)] as const;
    }
  `,
  "editor.ts": `
    import type { Extension } from "@codemirror/state";
    import { ThreadClient } from "plait-client";
    import { plaitText } from "plait-client/codemirror";
    const room = new ThreadClient({ kind: "note", name: "a", connect: false });
    export const extension: Extension = plaitText(room, "/note", { presence: "caret" });
  `,
};

const execute = promisify(execFile);

/** Runs a program, and returns what it writes; what it complains of is in the error. */
async function run(cwd: string, program: string, ...args: readonly string[]): Promise<string> {
  try {
    return (await execute(program, args, { cwd })).stdout;
  } catch (error) {
    const { stdout, stderr } = error as { stdout: string; stderr: string };
    throw new Error(`${program} ${args.join(" ")}\n${stdout}${stderr}`);
  }
}

const compile = (cwd: string, ...args: readonly string[]): Promise<string> =>
  run(cwd, process.execPath, join(MODULES, "typescript/bin/tsc"), ...args);

/** A project of its own in which the package is installed, with other packages beside it. */
class Project {
  readonly #folder: string;

  private constructor(name: string) {
    this.#folder = join(folder, name);
  }

  static async make(name: string, packages: readonly string[]): Promise<Project> {
    const project = new Project(name);
    await project.#install(packages);
    return project;
  }

  async #install(packages: readonly string[]): Promise<void> {
    mkdirSync(this.#folder);
    const settings = { name: "project", private: true, type: "module" };
    for (const [file, text] of Object.entries({ ...FILES, "package.json": JSON.stringify(settings) })) {
      writeFileSync(join(this.#folder, file), text);
    }
    await run(this.#folder, "npm", "install", "--offline", "--no-audit", "--no-fund", join(packed, tarball));
    for (const each of packages) {
      const place = join(this.#folder, "node_modules", each);
      mkdirSync(dirname(place), { recursive: true });
      symlinkSync(join(MODULES, each), place);
    }
  }

  async check(files: readonly string[], ...options: readonly string[]): Promise<void> {
    const strict = [
      "--noEmit",
      "--skipDefaultLibCheck",
      "--strict",
      "--exactOptionalPropertyTypes",
      "--target",
      "es2022",
    ];
    await compile(this.#folder, ...strict, ...options, ...files);
  }

  async bundle(files: readonly string[]): Promise<void> {
    await run(this.#folder, join(MODULES, ".bin/esbuild"), ...files, "--bundle", "--format=esm", "--outdir=built");
  }

  /** Imports an entry in Node, and returns the names that it exports. */
  async import(entry: string): Promise<string> {
    const script = `console.log(Object.keys(await import(${JSON.stringify(entry)})).join())`;
    return (await run(this.#folder, process.execPath, "--input-type=module", "--eval", script)).trim();
  }
}

beforeAll(async () => {
  mkdirSync(packed);
  // Not `npm pack` in place: before that, the bundle of the repository would be built.
  for (const name of ["package.json", "README.md", "LICENSE", "src"]) {
    cpSync(join(CLIENT, name), join(packed, name), { recursive: true });
  }
  await compile(CLIENT, "-p", "tsconfig.build.json", "--outDir", join(packed, "dist"));
  await run(CLIENT, process.execPath, "scripts/mangle.js", join(packed, "dist"));
  tarball = (await run(packed, "npm", "pack", "--ignore-scripts", "--silent")).trim();
}, 120_000);

afterAll(() => rmSync(folder, { recursive: true }));

test("the package is used without its optional peers, and in Node without the types of pages", async () => {
  const project = await Project.make("bare", ["@types/node", "undici-types"]);
  expect(await project.import("plait-client")).toBe(
    "PlaitError,ThreadClient,bindText,cache,channels,compare,files,keepIn,listThreads,messages,optimistic,queries,tasks,text,undo,watchThreads",
  );
  await expect(project.import("plait-client/react")).rejects.toThrow("Cannot find package 'react'");
  await expect(project.import("plait-client/dist/fold.js")).rejects.toThrow("ERR_PACKAGE_PATH_NOT_EXPORTED");
  await project.check(["node.ts"], "--module", "nodenext", "--lib", "es2022", "--types", "node");
}, 120_000);

test("its entries for React and CodeMirror are used with their peers", async () => {
  const react = ["react", "@types/react", "csstype"];
  const codemirror = ["@codemirror/state", "@codemirror/view", "@marijn/find-cluster-break", "style-mod"];
  const project = await Project.make("peers", [...react, ...codemirror, "w3c-keyname", "crelt"]);
  expect(await project.import("plait-client/react")).toContain("useThread");
  expect(await project.import("plait-client/codemirror")).toBe("plaitText");
  expect(await project.import("plait-client/store")).toBe("store");
  const files = Object.keys(FILES);
  await project.check(files, "--module", "esnext", "--moduleResolution", "bundler", "--lib", "es2022,dom");
  await project.bundle(files);
}, 120_000);
