//! The page that stands in front of PHP: with the list of what is never public, as text.

use std::fmt::Write;

use model::never_public::{
    ASSETS, DIRECTORIES, FILES, PACKAGES, PACKED, PAGES, PROGRAMS, PROJECT_DIRECTORIES,
    PROJECT_FILES, SOURCES, WELL_KNOWN,
};

use crate::frameworks::shell_word;

/// The name of the page in the release's directory; hidden, so that nobody is given it.
pub const FILE: &str = ".cortex-router.php";

const PAGE: &str = include_str!("front.php");

/// Files of what a site is made with, which are not shown either: PHP would send them as they are.
const TEMPLATES: &[&str] = &[
    "*.inc",
    "*.tpl",
    "*.tpl.php",
    "*.blade.php",
    "*.twig",
    "*.latte",
    "*.volt",
    "*.module",
    "*.install",
    "*.theme",
    "*.engine",
    "*.neon",
    "*.ini",
    "*.lock",
    "*.log",
    "*.sh",
    "error_log",
];

/// Settings, which are kept back if the project itself is served.
const SETTINGS: &[&str] = &["*.yml", "*.yaml"];

/// The programs that PHP runs itself.
const RUN: &str = "*.php";

/// Returns the shell command that writes the page.
pub fn command() -> String {
    format!("printf '%s' {} > {FILE}", shell_word(&page()))
}

fn page() -> String {
    let programs: Vec<&str> = PROGRAMS.iter().copied().filter(|one| *one != RUN).collect();
    let mut lists = String::from("{");
    for (name, patterns) in [
        ("files", [FILES, &programs, TEMPLATES].concat()),
        ("project_files", [PROJECT_FILES, SETTINGS].concat()),
        ("directories", DIRECTORIES.to_vec()),
        ("project_directories", PROJECT_DIRECTORIES.to_vec()),
        ("assets", ASSETS.to_vec()),
        ("packed", PACKED.to_vec()),
        ("pages", PAGES.to_vec()),
        ("sources", SOURCES.to_vec()),
    ] {
        // The names are plain: neither JSON nor PHP reads anything else in them.
        let _ = write!(lists, "\"{name}\":[\"{}\"],", patterns.join("\",\""));
    }
    let _ = write!(lists, "\"packages\":\"{PACKAGES}\",\"well_known\":\"{WELL_KNOWN}\"}}");
    PAGE.replace("@LISTS@", &lists)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_list_as_it_is() {
        let page = page();
        assert!(!page.contains("@LISTS@"));
        for name in [FILES, PROJECT_FILES, DIRECTORIES, TEMPLATES].concat() {
            assert!(page.contains(&format!("\"{name}\"")), "{name}");
            assert!(!name.contains(['\'', '"', '\\', '[', '?']), "{name} reads otherwise there");
        }
        assert!(!page.contains("\"*.php\""), "it would run nothing");
    }
}
