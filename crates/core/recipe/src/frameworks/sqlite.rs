//! SQLite files that an application's code names: they must outlive a release. Used by frameworks
//! that have no settings file to say where their database is.

use std::collections::BTreeSet;

use crate::manifest::relative_path;
use crate::source::SourceTree;

const ENDINGS: &[&str] = &[".sqlite3", ".sqlite", ".db"];
/// Databases of one application; a longer list is not one application's.
const FILES_MAX: usize = 10;

/// Returns the paths in quotes that end like a database, in files of the given pattern.
pub fn named_in_code(tree: &SourceTree, pattern: &str) -> Vec<String> {
    let own = tree.named(pattern).filter(|(path, _)| !path.contains("test"));
    let texts = own.filter_map(|(_, file)| file.text.as_deref());
    let found: BTreeSet<String> = texts.flat_map(named_in).collect();
    found.into_iter().take(FILES_MAX).collect()
}

/// Returns the paths in quotes that end like a database, without those for development and tests.
pub fn named_in(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with(['#', '/']));
    lines.flat_map(quoted).filter_map(database_path).collect()
}

/// Returns what is in quotes on a line. A name that is added to something else (`DATA . 'a.db'`)
/// does not say where it is: to keep it in the root would keep nothing, and seem to.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    let mut pieces = line.split(['"', '\'', '`']);
    std::iter::from_fn(move || Some((pieces.next()?, pieces.next()?)))
        .filter(|(before, text)| text.contains('/') || !before.trim_end().ends_with(['.', '+']))
        .map(|(_, text)| text)
}

/// Returns the path of a database: `sqlite:///shop.db` is `shop.db`; what is not inside the
/// application is not ours to keep.
pub fn database_path(text: &str) -> Option<String> {
    let path = match text.split_once(':') {
        Some(("sqlite" | "sqlite3" | "file", rest)) => {
            let rest = rest.strip_prefix("///").unwrap_or(rest);
            rest.split('?').next().unwrap_or(rest)
        }
        _ => text,
    };
    let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let name = path.rsplit('/').next().unwrap_or(path);
    // A dot before the ending makes it a module's name: `django.db.backends.sqlite3`.
    let stem = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending));
    let ends = stem.is_some_and(|stem| !stem.is_empty() && !stem.contains('.'));
    let other = name.contains("test") || name.contains("development");
    if plain && ends && !other { relative_path(path).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_files_are_found_in_quotes() {
        let code = "db = sqlite3.connect('data/shop.db')\nURL = \"sqlite:///a.sqlite3?x=1\"\n\
                    # 'old.db'\nx = 'test.db', '/var/b.db', '../c.db', 'a b.db', '.db', 'd.dbx', 'a.backends.sqlite3'\n";
        assert_eq!(named_in(code), ["data/shop.db", "a.sqlite3"]);
        let added = "define('DB', DATA_DIR.DIRECTORY_SEPARATOR.'db.sqlite');\nx = home + \"y.db\"";
        assert_eq!(named_in(added), [""; 0]);
        let tree = SourceTree::from_pairs([("app.py", code), ("tests/a.py", "'z.db'")]);
        assert_eq!(named_in_code(&tree, "*.py"), ["a.sqlite3", "data/shop.db"]);
    }
}
