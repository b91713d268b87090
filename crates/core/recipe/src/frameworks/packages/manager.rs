//! npm, pnpm, Yarn or Bun, and in which version: what package.json says, else what the lock file
//! was written by.

use crate::frameworks::package_json::{Package, within};
use crate::manifest::relative_path;
use crate::source::SourceTree;

pub const NPM_LOCKS: &[&str] = &["package-lock.json", "npm-shrinkwrap.json"];
const YARN_SETTINGS: &str = ".yarnrc.yml";
const SHOWN_CHARS_MAX: usize = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagerKind {
    Npm,
    Pnpm,
    YarnClassic,
    YarnBerry,
    Bun,
}

impl ManagerKind {
    /// Returns its name in the registry.
    pub fn package(self) -> &'static str {
        match self {
            ManagerKind::Npm => "npm",
            ManagerKind::Pnpm => "pnpm",
            ManagerKind::YarnClassic => "yarn",
            ManagerKind::YarnBerry => "@yarnpkg/cli-dist",
            ManagerKind::Bun => "bun",
        }
    }

    pub fn program(self) -> &'static str {
        match self {
            ManagerKind::YarnBerry => "yarn",
            kind => kind.package(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerChoice {
    pub kind: ManagerKind,
    /// The version as the registry takes it; `None` for the machine's npm, or if there is a
    /// `program`.
    pub version: Option<String>,
    /// A file of the repository that is the manager, relative to package.json.
    pub program: Option<String>,
    /// Whether the settings name such a file, be it there or not.
    pub names_program: bool,
    /// Whether packages stay in archives, in which only Yarn's own loader finds them.
    pub plug_and_play: bool,
}

pub fn choose(
    tree: &SourceTree,
    directory: &str,
    package: &Package,
    notes: &mut Vec<String>,
) -> Result<ManagerChoice, String> {
    let here = |name: &str| within(directory, name);
    let said = said(package)?;
    let name = match &said {
        Some((name, _)) => name.as_str(),
        None => by_lock(tree, directory, notes),
    };
    let mut version = said.as_ref().and_then(|(_, version)| version.clone());
    version = version.or_else(|| version_beside(package, name));
    let kind = match name {
        "npm" => ManagerKind::Npm,
        "pnpm" => ManagerKind::Pnpm,
        "bun" => ManagerKind::Bun,
        _ => yarn_kind(tree, directory, version.as_deref()),
    };
    let settings = tree.text(&here(YARN_SETTINGS)).unwrap_or_default();
    let is_yarn = matches!(kind, ManagerKind::YarnClassic | ManagerKind::YarnBerry);
    let named = if is_yarn { program(tree, directory) } else { None };
    let names_program = named.is_some();
    let program = named.filter(|file| tree.exists(&here(file)));
    let version = match program {
        Some(_) => None,
        None => version.or_else(|| by_lock_format(tree, directory, kind)),
    };
    let linker = setting(settings, "nodeLinker").unwrap_or("pnp");
    let plug_and_play = kind == ManagerKind::YarnBerry && linker == "pnp";
    Ok(ManagerChoice { kind, version, program, names_program, plug_and_play })
}

/// Returns `packageManager`, else `devEngines.packageManager`: a name, and a version if one is
/// given.
fn said(package: &Package) -> Result<Option<(String, Option<String>)>, String> {
    let wrong = |text: &str| {
        let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
        format!(
            "package.json: packageManager '{}' is none of npm, pnpm, yarn and bun with an exact \
             version; write for example \"pnpm@9.12.0\"",
            shown.escape_debug()
        )
    };
    let known = |name: &str| ["npm", "pnpm", "yarn", "bun"].contains(&name);
    if let Some(text) = package.text(&["packageManager"]) {
        let (name, version) = match text.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        // What follows a plus is a checksum.
        let version = version.map(|version| version.split('+').next().unwrap_or(version));
        let plain = |version: &str| {
            version.starts_with(|c: char| c.is_ascii_digit())
                && version.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c))
        };
        if !known(name) || !version.is_none_or(plain) {
            return Err(wrong(text));
        }
        return Ok(Some((name.to_owned(), version.map(str::to_owned))));
    }
    let name = package.text(&["devEngines", "packageManager", "name"]).filter(|name| known(name));
    let version = package.text(&["devEngines", "packageManager", "version"]);
    Ok(name.map(|name| (name.to_owned(), version.map(str::to_owned))))
}

/// Returns Volta's pin, else `engines`. Of npm only a version that leaves no choice counts: for
/// `>=8` the machine's own will do.
fn version_beside(package: &Package, name: &str) -> Option<String> {
    if let Some(pin) = package.text(&["volta", name]) {
        return Some(pin.to_owned());
    }
    let range = package.text(&["engines", name]).filter(|range| !matches!(*range, "*" | "x"))?;
    let narrow = range.starts_with(|c: char| c.is_ascii_digit() || "^~=v".contains(c));
    (name != "npm" || narrow).then(|| range.to_owned())
}

fn by_lock(tree: &SourceTree, directory: &str, notes: &mut Vec<String>) -> &'static str {
    let locks = [
        ("pnpm-lock.yaml", "pnpm"),
        ("pnpm-workspace.yaml", "pnpm"),
        ("yarn.lock", "yarn"),
        (YARN_SETTINGS, "yarn"),
        ("bun.lock", "bun"),
        ("bun.lockb", "bun"),
        (NPM_LOCKS[0], "npm"),
        (NPM_LOCKS[1], "npm"),
    ];
    let mut found = locks.iter().filter(|(lock, _)| tree.exists(&within(directory, lock)));
    let Some((lock, name)) = found.next() else { return "npm" };
    if let Some((other, _)) = found.find(|(_, other)| other != name) {
        notes.push(format!(
            "{other} was ignored: {lock} says that {name} installs the packages; remove one of \
             them, or write \"packageManager\" into package.json"
        ));
    }
    name
}

fn yarn_kind(tree: &SourceTree, directory: &str, version: Option<&str>) -> ManagerKind {
    let major = version.and_then(first_number);
    let exact = version.is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit()));
    let lock = tree.text(&within(directory, "yarn.lock"));
    let modern = match lock {
        _ if exact => major.is_some_and(|major| major >= 2),
        Some(lock) => lock.contains("__metadata:"),
        None => {
            major.is_some_and(|major| major >= 2) || tree.exists(&within(directory, YARN_SETTINGS))
        }
    };
    if modern { ManagerKind::YarnBerry } else { ManagerKind::YarnClassic }
}

/// Returns the `yarnPath` of `.yarnrc.yml`, or the `yarn-path` of the older `.yarnrc`.
fn program(tree: &SourceTree, directory: &str) -> Option<String> {
    let settings = tree.text(&within(directory, YARN_SETTINGS)).unwrap_or_default();
    let older = tree.text(&within(directory, ".yarnrc")).unwrap_or_default();
    let older = older.lines().find_map(|line| line.trim().strip_prefix("yarn-path "));
    let named = setting(settings, "yarnPath").or(older)?;
    relative_path(named.trim().trim_matches(['"', '\''])).ok()
}

fn setting<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let value = value.split(" #").next().unwrap_or(value);
    Some(value.trim().trim_matches(['"', '\''])).filter(|value| !value.is_empty())
}

/// Returns the version that wrote the lock file, as a later one may write it anew.
fn by_lock_format(tree: &SourceTree, directory: &str, kind: ManagerKind) -> Option<String> {
    let text = |name: &str| tree.text(&within(directory, name)).unwrap_or_default();
    let version = match kind {
        ManagerKind::Npm => return None,
        ManagerKind::Pnpm => match setting(text("pnpm-lock.yaml"), "lockfileVersion") {
            Some(format) if format.starts_with("5.4") => "7",
            Some(format) if format.starts_with('5') => "6",
            Some(format) if format.starts_with('6') => "8",
            _ if text("pnpm-workspace.yaml").contains("onlyBuiltDependencies") => "10",
            _ => "9",
        },
        ManagerKind::YarnClassic => "1",
        ManagerKind::YarnBerry => match berry_format(text("yarn.lock")) {
            Some(..=4) => "3.0",
            Some(5) => "3.1",
            Some(6) => "3",
            _ => "4",
        },
        ManagerKind::Bun => "1",
    };
    Some(version.into())
}

fn berry_format(lock: &str) -> Option<u32> {
    let (_, metadata) = lock.split_once("__metadata:")?;
    let line = metadata.lines().find_map(|line| line.trim().strip_prefix("version:"))?;
    line.trim().trim_matches(['"', '\'']).parse().ok()
}

fn first_number(text: &str) -> Option<u32> {
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(package: &str, files: &[(&str, &str)]) -> Result<ManagerChoice, String> {
        let tree = SourceTree::from_pairs(files.iter().copied().chain([("package.json", package)]));
        choose(&tree, "", &Package::read(&tree).unwrap(), &mut Vec::new())
    }

    #[track_caller]
    fn check(package: &str, files: &[(&str, &str)], kind: ManagerKind, version: Option<&str>) {
        let chosen = chosen(package, files).unwrap();
        assert_eq!(
            (chosen.kind, chosen.version.as_deref()),
            (kind, version),
            "{package} {files:?}"
        );
    }

    #[test]
    fn package_json_says_which_manager_in_which_version() {
        let with = |text: &str| format!(r#"{{"packageManager": "{text}"}}"#);
        check(&with("npm@10.8.2+sha512.abc"), &[], ManagerKind::Npm, Some("10.8.2"));
        check(&with("pnpm@9.12.0"), &[("yarn.lock", "")], ManagerKind::Pnpm, Some("9.12.0"));
        check(&with("yarn@1.22.22"), &[], ManagerKind::YarnClassic, Some("1.22.22"));
        check(&with("yarn@4.5.0"), &[], ManagerKind::YarnBerry, Some("4.5.0"));
        check(&with("bun@1.1.0"), &[], ManagerKind::Bun, Some("1.1.0"));
        let engines = r#"{"devEngines": {"packageManager": {"name": "pnpm", "version": "^9"}}}"#;
        check(engines, &[], ManagerKind::Pnpm, Some("^9"));
        check(
            r#"{"volta": {"yarn": "1.22.19"}}"#,
            &[("yarn.lock", "")],
            ManagerKind::YarnClassic,
            Some("1.22.19"),
        );
        check(r#"{"engines": {"npm": "10.x"}}"#, &[], ManagerKind::Npm, Some("10.x"));
        check(r#"{"engines": {"npm": ">=8"}}"#, &[], ManagerKind::Npm, None);
        check(
            r#"{"engines": {"pnpm": ">=8"}}"#,
            &[("pnpm-lock.yaml", "")],
            ManagerKind::Pnpm,
            Some(">=8"),
        );
        for wrong in ["cnpm@1", "yarn@https://a/b.tgz", "pnpm@", "yarn@berry", "npm@1; rm x"] {
            let error = chosen(&with(wrong), &[]).unwrap_err();
            assert!(error.contains("write for example"), "{error}");
        }
    }

    #[test]
    fn lock_files_say_it_where_package_json_does_not() {
        check("{}", &[], ManagerKind::Npm, None);
        check("{}", &[("package-lock.json", "")], ManagerKind::Npm, None);
        for (format, version) in [("9.0", "9"), ("6.0", "8"), ("5.4", "7"), ("5.3", "6")] {
            let lock = format!("lockfileVersion: '{format}'\n");
            check("{}", &[("pnpm-lock.yaml", &lock)], ManagerKind::Pnpm, Some(version));
        }
        check("{}", &[("yarn.lock", "# yarn lockfile v1\n")], ManagerKind::YarnClassic, Some("1"));
        for (format, version) in [(8, "4"), (6, "3"), (5, "3.1"), (4, "3.0")] {
            let lock = format!("__metadata:\n  version: {format}\n");
            check("{}", &[("yarn.lock", &lock)], ManagerKind::YarnBerry, Some(version));
        }
        check("{}", &[("bun.lock", "")], ManagerKind::Bun, Some("1"));
        let mut notes = Vec::new();
        let tree = SourceTree::from_pairs([("yarn.lock", ""), ("package-lock.json", "")]);
        assert_eq!(by_lock(&tree, "", &mut notes), "yarn");
        assert!(notes[0].contains("package-lock.json was ignored"), "{notes:?}");
    }

    #[test]
    fn a_yarn_in_the_repository_comes_first() {
        let settings = "nodeLinker: node-modules\nyarnPath: .yarn/releases/yarn-4.5.0.cjs\n";
        let file = (".yarn/releases/yarn-4.5.0.cjs", "");
        let with = r#"{"packageManager": "yarn@4.9.0"}"#;
        let found = chosen(with, &[(".yarnrc.yml", settings), file]).unwrap();
        assert_eq!(found.program.as_deref(), Some(".yarn/releases/yarn-4.5.0.cjs"));
        assert!(found.version.is_none() && !found.plug_and_play);
        let absent = chosen(with, &[(".yarnrc.yml", settings)]).unwrap();
        assert_eq!((absent.version.as_deref(), absent.names_program), (Some("4.9.0"), true));
        let older = chosen(
            "{}",
            &[("yarn.lock", ""), (".yarnrc", "yarn-path \"bin/y.js\"\n"), ("bin/y.js", "")],
        );
        assert_eq!(older.unwrap().program.as_deref(), Some("bin/y.js"));
        assert!(chosen(with, &[]).unwrap().plug_and_play);
    }
}
