//! The versions of interpreters and compilers that a project's files ask for, as its own tools read
//! them. Pure: which of them a machine has is found where the project is built.

mod files;

use model::Recipe;
use model::release::Runtime;

use crate::source::SourceTree;
use crate::versions::{Dialect, ProgramVersion, VersionRange};

/// Characters of a range, more than people write.
const WANTED_CHARS_MAX: usize = 100;

/// Node.js releases with long-term support, by the names that nvm takes.
const LONG_TERM: &[(&str, u32)] = &[
    ("argon", 4),
    ("boron", 6),
    ("carbon", 8),
    ("dubnium", 10),
    ("erbium", 12),
    ("fermium", 14),
    ("gallium", 16),
    ("hydrogen", 18),
    ("iron", 20),
    ("jod", 22),
    ("krypton", 24),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Python,
    Ruby,
    Node,
    Npm,
    Php,
    Go,
    Rust,
    Java,
    Elixir,
}

use Language::{Elixir, Go, Java, Node, Npm, Php, Python, Ruby, Rust};

pub const LANGUAGES: &[Language] = &[Python, Ruby, Node, Npm, Php, Go, Rust, Java, Elixir];

impl Language {
    /// Returns its name as records have it.
    pub fn name(self) -> &'static str {
        match self {
            Python => "python",
            Ruby => "ruby",
            Node => "node",
            Npm => "npm",
            Php => "php",
            Go => "go",
            Rust => "rust",
            Java => "java",
            Elixir => "elixir",
        }
    }

    /// Returns its name for people.
    pub fn title(self) -> &'static str {
        match self {
            Python => "Python",
            Ruby => "Ruby",
            Node => "Node.js",
            Npm => "npm",
            Php => "PHP",
            Go => "Go",
            Rust => "Rust",
            Java => "Java",
            Elixir => "Elixir",
        }
    }

    pub fn named(name: &str) -> Option<Language> {
        LANGUAGES.iter().copied().find(|language| language.name() == name)
    }

    /// Returns whether the language's own tools refuse another version; the others warn, or fetch
    /// it themselves.
    fn is_strict(self) -> bool {
        matches!(self, Python | Ruby | Php)
    }

    fn dialect(self) -> Dialect {
        match self {
            Python => Dialect::Python,
            Ruby | Elixir => Dialect::Ruby,
            Php => Dialect::Composer,
            Node | Npm | Go | Rust | Java => Dialect::Npm,
        }
    }
}

/// Returns what `wanted` of a record means; `None` if this language has no such range.
pub fn range(language: Language, wanted: &str) -> Option<VersionRange> {
    let wanted = wanted.trim();
    if language == Node {
        if ["node", "stable", "latest", "current"].contains(&wanted) {
            return VersionRange::parse(Dialect::Npm, "*");
        }
        if wanted == "lts" || wanted == "lts/*" {
            let all: Vec<String> = LONG_TERM.iter().map(|(_, major)| major.to_string()).collect();
            return VersionRange::parse(Dialect::Npm, &all.join(" || "));
        }
        if let Some(name) = wanted.strip_prefix("lts/").or_else(|| wanted.strip_prefix("lts-")) {
            let (_, major) =
                LONG_TERM.iter().find(|(known, _)| name.eq_ignore_ascii_case(known))?;
            return VersionRange::parse(Dialect::Npm, &major.to_string());
        }
    }
    if wanted == "latest" {
        return VersionRange::parse(language.dialect(), "*");
    }
    VersionRange::parse(language.dialect(), wanted)
}

/// Returns whether `version` is what `runtime` asks for. What is not understood holds nothing back.
pub fn fits(language: Language, runtime: &Runtime, version: &ProgramVersion) -> bool {
    range(language, &runtime.wanted).is_none_or(|range| range.holds(version))
}

/// Fills in `runtimes`, and notes what was not understood.
pub fn add(tree: &SourceTree, recipe: &mut Recipe) {
    let used = languages(tree, recipe);
    let mut found = Vec::new();
    for language in &used {
        found.extend(files::asked(tree, *language).into_iter().map(|wish| (*language, wish)));
    }
    for (language, (wanted, said_by)) in found {
        if range(language, &wanted).is_none() || wanted.chars().count() > WANTED_CHARS_MAX {
            let shown: String =
                wanted.chars().take(WANTED_CHARS_MAX).flat_map(char::escape_debug).collect();
            recipe.notes.push(format!(
                "{said_by} asks for {} '{shown}', which is not understood and was ignored",
                language.title()
            ));
            continue;
        }
        recipe.runtimes.push(Runtime {
            language: language.name().into(),
            wanted,
            said_by,
            is_required: language.is_strict() && Some(language) == primary(&recipe.framework),
        });
    }
    let python = |runtime: &Runtime| runtime.language == Python.name();
    if used.contains(&Python)
        && primary(&recipe.framework) == Some(Python)
        && !recipe.runtimes.iter().any(python)
    {
        recipe.runtimes.push(Runtime {
            language: Python.name().into(),
            is_required: true,
            ..Runtime::default()
        });
    }
}

/// Returns the language that a framework is written in.
fn primary(framework: &str) -> Option<Language> {
    Some(match framework {
        "django" | "pyramid" | "flask" | "fastapi" | "python" => Python,
        "rails" | "rack" => Ruby,
        "php" => Php,
        "go" => Go,
        "rust" => Rust,
        "java" => Java,
        "phoenix" => Elixir,
        "node" | "nextjs" => Node,
        _ => return None,
    })
}

fn languages(tree: &SourceTree, recipe: &Recipe) -> Vec<Language> {
    let first = primary(&recipe.framework);
    let mut used: Vec<Language> = first.into_iter().collect();
    let words = ["npm", "npx", "node", "yarn", "pnpm", "corepack", "bun"];
    let calls = |command: &str| {
        let mut parts = command.split(|c: char| !c.is_ascii_alphanumeric());
        parts.any(|part| words.contains(&part))
    };
    let runs_node = recipe.build.iter().any(|step| calls(&step.command))
        || recipe.processes.values().any(|process| calls(&process.command));
    if tree.exists("package.json") && (runs_node || first == Some(Node)) {
        used.retain(|language| *language != Node);
        used.extend([Node, Npm]);
    }
    // What a Procfile alone starts may be anything.
    if recipe.framework == "procfile" {
        used = LANGUAGES.to_vec();
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(framework: &str, files: &[(&str, &str)]) -> Recipe {
        let mut recipe = Recipe { framework: framework.into(), ..Recipe::default() };
        add(&SourceTree::from_pairs(files.iter().copied()), &mut recipe);
        recipe
    }

    #[test]
    fn what_a_language_refuses_is_required_and_what_it_warns_of_is_not() {
        let recipe = added("flask", &[(".python-version", "3.9.1\n"), (".ruby-version", "3.1")]);
        let [python] = &recipe.runtimes[..] else { panic!("{recipe:?}") };
        assert_eq!((&*python.language, &*python.wanted), ("python", "3.9.1"));
        assert!(python.is_required && python.said_by == ".python-version");
        let node = added("node", &[("package.json", r#"{"engines": {"node": "22.x"}}"#)]);
        assert_eq!((&*node.runtimes[0].wanted, node.runtimes[0].is_required), ("22.x", false));
        let any = added("python", &[]);
        assert_eq!((&*any.runtimes[0].wanted, any.runtimes[0].is_required), ("", true));
        assert!(added("static", &[(".nvmrc", "20")]).runtimes.is_empty());
    }

    #[test]
    fn a_second_language_is_asked_for_where_it_is_used() {
        let files = [("package.json", "{}"), (".nvmrc", "lts/iron"), (".ruby-version", "3.1.2")];
        let tree = SourceTree::from_pairs(files);
        let mut recipe = Recipe { framework: "rails".into(), ..Recipe::default() };
        add(&tree, &mut recipe);
        assert_eq!(recipe.runtimes.len(), 1);
        let command = "npm ci --include=dev".into();
        let mut recipe = Recipe { framework: "rails".into(), ..Recipe::default() };
        recipe.build.push(model::release::Step { name: "x".into(), command });
        add(&tree, &mut recipe);
        let languages: Vec<&str> = recipe.runtimes.iter().map(|r| r.language.as_str()).collect();
        assert_eq!(languages, ["ruby", "node"]);
        let beside = added("procfile", &[(".python-version", "3.9")]);
        assert!(!beside.runtimes[0].is_required);
    }

    #[test]
    fn what_is_not_understood_is_remarked() {
        let recipe = added("rack", &[(".ruby-version", "jruby-9.4.5.0\n")]);
        assert!(recipe.runtimes.is_empty());
        assert!(recipe.notes[0].contains("'jruby-9.4.5.0', which is not understood"));
    }

    #[test]
    fn names_of_node_releases_are_known() {
        for (wanted, version, expected) in [
            ("lts/iron", "20.1.0", true),
            ("lts/Jod", "20.1.0", false),
            ("lts/*", "18.19.0", true),
            ("lts/*", "21.0.0", false),
            ("node", "9.0.0", true),
        ] {
            let runtime = Runtime { wanted: wanted.into(), ..Runtime::default() };
            let version = ProgramVersion::parse(version).unwrap();
            assert_eq!(fits(Node, &runtime, &version), expected, "{wanted} {version}");
        }
        assert_eq!(range(Node, "lts/nobody"), None);
    }
}
