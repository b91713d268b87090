//! How Node.js packages are installed. Used by Node.js applications, and by others whose assets
//! need them.

use model::release::Step;

use crate::source::SourceTree;

/// Lock files of other package managers, and the manager's own name in the registry.
const OTHERS: &[(&str, &str, &str)] = &[
    ("pnpm-lock.yaml", "pnpm", "npx --yes pnpm install --frozen-lockfile"),
    ("yarn.lock", "yarn", "npx --yes yarn install --frozen-lockfile --non-interactive"),
    ("bun.lock", "bun", "npx --yes bun install --frozen-lockfile"),
    ("bun.lockb", "bun", "npx --yes bun install --frozen-lockfile"),
];

/// `development` packages are wanted where something is built with them.
pub fn install(tree: &SourceTree, development: bool) -> Step {
    let name = "Installing Node.js packages".into();
    let chosen = manager(tree);
    for (lock, manager, command) in OTHERS {
        if chosen.as_deref() == Some(*manager) || (chosen.is_none() && tree.exists(lock)) {
            // These leave development packages out by themselves when NODE_ENV says production.
            let environment = if development { "env NODE_ENV=development " } else { "" };
            return Step { name, command: format!("{environment}{command}") };
        }
    }
    let which = if development { "--include=dev" } else { "--omit=dev" };
    let quiet = "--no-audit --no-fund --loglevel=error";
    let locked = tree.exists("package-lock.json") || tree.exists("npm-shrinkwrap.json");
    let install = format!("npm install {which} {quiet}");
    let command = if locked {
        // A lock made on another system may miss packages that only this one needs.
        format!("npm ci {which} {quiet} || {install}")
    } else {
        install
    };
    Step { name, command }
}

/// What `packageManager` in package.json says, without the version.
fn manager(tree: &SourceTree) -> Option<String> {
    let package: serde_json::Value = serde_json::from_str(tree.text("package.json")?).ok()?;
    let manager = package.get("packageManager")?.as_str()?;
    manager.split('@').next().map(str::to_owned)
}
