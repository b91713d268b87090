//! The place where a build left its pages: known from the files, or found afterwards among the
//! directories that tools write to. Either way the last step of the build says in words what is
//! missing.

use model::Recipe;
use model::release::Step;

use crate::frameworks::shell_word;
use crate::source::SourceTree;

/// The name of the step that recipes end with, by which `take` finds it.
const NAME: &str = "Looking for the site";
/// The link that leads to what was found.
const FOUND: &str = ".cortex-site";
/// A file that is older than everything a build wrote.
const BEGAN: &str = ".cortex-began";
/// The directories that tools write to, the usual ones first.
const CANDIDATES: &[&str] = &[
    "dist",
    "build",
    "out",
    "_site",
    "public",
    ".output/public",
    "build/client",
    "dist/client",
    "dist/browser",
    "www",
    "site",
    "docs",
    "htdocs",
];
/// The directories that tools write to in projects of several packages.
const NESTED: &str = "*/dist */build */out */*/dist */*/build */*/out";
/// Directories with pages that need no building but whose other files are built.
const SOURCES: &[&str] = &["src", "."];

/// The way to find the pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    known: Option<String>,
    /// Candidates with an index of their own in the source: something in them has to be newer.
    before: Vec<String>,
    /// Pages that are beside what is built.
    sources: Vec<String>,
}

impl Finding {
    pub fn new(tree: &SourceTree, known: Option<&str>) -> Finding {
        let has_index = |directory: &&str| tree.exists(&index_of(directory));
        let before = CANDIDATES.iter().filter(|directory| has_index(directory));
        // A file that names its own sources is no page yet.
        let built = |directory: &&str| {
            let text = tree.text(&index_of(directory)).unwrap_or_default();
            has_index(directory)
                && !["\"/src/", "'/src/", "\"./src/", ".tsx\"", ".jsx\"", ".ts\""]
                    .iter()
                    .any(|source| text.contains(source))
        };
        Finding {
            known: known.map(str::to_owned),
            before: before.map(|directory| (*directory).to_owned()).collect(),
            sources: SOURCES.iter().filter(|one| built(one)).map(|one| (*one).to_owned()).collect(),
        }
    }

    /// Returns the directory of the pages, relative to the release.
    pub fn directory(&self) -> String {
        self.known.clone().unwrap_or_else(|| FOUND.into())
    }

    pub fn step(&self) -> Step {
        let command = match &self.known {
            Some(known) => known_command(known),
            None => self.search_command(),
        };
        Step { name: NAME.into(), command }
    }

    fn search_command(&self) -> String {
        let candidates = CANDIDATES.join(" ");
        let before = self.before.join(" ");
        let sources = match self.sources.first() {
            Some(source) => format!(
                "[ $# -gt 0 ] || {{ echo 'The pages of {source} are served as they are.'; set -- {source}; }}\n"
            ),
            None => String::new(),
        };
        format!(
            "look() {{ found=; for d in \"$@\"; do [ -f \"$d/index.html\" ] || continue; \
             case \"$d\" in node_modules/*|*/node_modules/*) continue;; esac; \
             case \" {before} \" in *\" $d \"*) \
             [ -n \"$(find \"$d\" -type f -newer {BEGAN} | head -n 1)\" ] || continue;; esac; \
             for f in $found; do case \"$d\" in \"$f\"/*) continue 2;; esac; done; \
             found=\"$found $d\"; done; }}\n\
             look {candidates}; [ -n \"$found\" ] || look {NESTED}\n\
             set -- $found\n{sources}\
             if [ $# -eq 1 ]; then ln -sfn \"$1\" {FOUND}; exit; fi\n\
             if [ $# -eq 0 ]; then echo 'The build left no new index.html in any of: {candidates}.'; \
             else echo \"The build left an index.html in several directories:$found.\"; fi >&2\n\
             {ADVICE}; exit 1"
        )
    }
}

const ADVICE: &str = "echo 'Say in cortex.toml which directory is the site, or give the project a \
    start script if it is a server:' >&2; printf '  [static]\\n  output = \"DIRECTORY\"\\n' >&2";

fn known_command(known: &str) -> String {
    let word = shell_word(known);
    let candidates = CANDIDATES.join(" ");
    format!(
        "[ -d {word} ] && [ -n \"$(ls -A {word})\" ] && exit\n\
         printf 'The build left nothing in %s.\\n' {word} >&2\n\
         for d in {candidates}; do [ ! -f \"$d/index.html\" ] || echo \"There is $d/index.html.\" >&2; \
         done\n{ADVICE}; exit 1"
    )
}

fn index_of(directory: &str) -> String {
    if directory == "." { "index.html".into() } else { format!("{directory}/index.html") }
}

/// Takes the step out of a recipe, so that it can be put behind all others.
pub fn take(recipe: &mut Recipe) -> Option<Step> {
    let at = recipe.build.iter().position(|step| step.name == NAME)?;
    Some(recipe.build.remove(at))
}

/// Puts the step behind all others, and what it needs before them.
pub fn put(recipe: &mut Recipe, step: Step) {
    if step.command.contains(BEGAN) {
        let command = format!("touch {BEGAN}");
        recipe.build.insert(0, Step { name: "Noting the time".into(), command });
    }
    recipe.build.push(step);
}

/// Returns the step for a directory that the project's own file names.
pub fn of_output(output: &str) -> Step {
    Step { name: NAME.into(), command: known_command(output) }
}
