// Makes the npm packages of a release: one for each archive in DIRECTORY, with its program, and `treehold`, which depends on them.
//
//   node packages/npm/pack.mjs DIRECTORY
//
// The packages (.tgz) are written into DIRECTORY.
import { execFileSync } from "node:child_process";
import { cpSync, mkdtempSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2]);
const systems = { "unknown-linux-gnu": "linux", "unknown-linux-musl": "linux", "apple-darwin": "darwin" };
const processors = { x86_64: "x64", aarch64: "arm64" };

const archives = new Map();
let version;
for (const file of readdirSync(out)) {
  const parts = /^treehold-(.+?)-(x86_64|aarch64)-(.+)\.tar\.gz$/.exec(file);
  if (!parts || !(parts[3] in systems)) continue;
  if (version !== undefined && version !== parts[1]) throw new Error(`archives of ${version} and ${parts[1]} in ${out}`);
  version = parts[1];
  const platform = `${systems[parts[3]]}-${processors[parts[2]]}`;
  // A static program runs everywhere on Linux, so it is preferred.
  if (!archives.has(platform) || parts[3].endsWith("musl")) archives.set(platform, file);
}
if (version === undefined) throw new Error(`no archive in ${out}; run scripts/dist.sh`);

const work = mkdtempSync(join(tmpdir(), "treehold-npm-"));
const pack = (folder) => execFileSync("npm", ["pack", "--silent", "--pack-destination", out], { cwd: folder, stdio: ["ignore", "inherit", "inherit"] });
try {
  const common = JSON.parse(readFileSync(join(here, "package.json"), "utf8"));
  const optionalDependencies = {};
  for (const [platform, archive] of [...archives].sort()) {
    const [system, processor] = platform.split("-");
    const folder = join(work, platform);
    mkdirSync(folder);
    execFileSync("tar", ["-xzf", join(out, archive), "-C", folder, "--strip-components=1", "--wildcards", "*/treehold", "*/LICENSE*"]);
    const name = `@treehold/cli-${platform}`;
    const description = `The program treehold for ${system} on ${processor}`;
    const manifest = { name, version, description, license: common.license, os: [system], cpu: [processor], files: ["treehold", "LICENSE*"] };
    writeFileSync(join(folder, "package.json"), JSON.stringify(manifest, null, 2));
    pack(folder);
    optionalDependencies[name] = version;
  }
  const folder = join(work, "treehold");
  cpSync(here, folder, { recursive: true });
  rmSync(join(folder, "pack.mjs"));
  writeFileSync(join(folder, "package.json"), JSON.stringify({ ...common, version, optionalDependencies }, null, 2));
  pack(folder);
} finally {
  rmSync(work, { recursive: true });
}
