//! A site of files: nothing runs, the router serves it.

use model::Recipe;
use model::release::StaticMount;

use super::{Framework, RecipeError};
use crate::manifest::relative_path;
use crate::source::SourceTree;

/// Where the pages are, in order; the root itself is last.
const DIRECTORIES: &[&str] = &["public", "dist", "build", "_site", "out", "htdocs"];
const STATICFILE: &str = "Staticfile";

pub struct StaticSite;

impl Framework for StaticSite {
    fn name(&self) -> &'static str {
        "static"
    }

    fn looks_for(&self) -> &'static str {
        "index.html in the root or in public/, or a Staticfile"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        if tree.exists(STATICFILE) {
            return Some(format!("{STATICFILE} asks for a static site"));
        }
        let directory = directory_with_index(tree)?;
        Some(match directory {
            "." => "index.html is in the root".into(),
            directory => format!("{directory}/index.html is there"),
        })
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let mut mount = StaticMount {
            prefix: "/".into(),
            directory: directory_with_index(tree).unwrap_or(".").into(),
            fallback: None,
        };
        let mut notes = Vec::new();
        for line in tree.text(STATICFILE).unwrap_or_default().lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let value = value.trim().trim_matches(['"', '\'']);
            match key.trim() {
                "root" => {
                    mount.directory = relative_path(value)
                        .map_err(|why| RecipeError(format!("{STATICFILE}: root: {why}")))?;
                    if !tree.has_directory(&mount.directory) {
                        let why =
                            format!("{STATICFILE} names the root '{value}', which is not there");
                        return Err(RecipeError(why));
                    }
                }
                "pushstate" | "index_fallback" if !matches!(value, "" | "false" | "disabled") => {
                    mount.fallback = Some("index.html".into());
                }
                key if key.starts_with('#') || key == "pushstate" || key == "index_fallback" => {}
                key => notes.push(format!("{STATICFILE}: '{}' was ignored", key.escape_debug())),
            }
        }
        Ok(Recipe { statics: vec![mount], notes, ..Recipe::default() })
    }
}

fn directory_with_index(tree: &SourceTree) -> Option<&'static str> {
    if tree.exists("index.html") {
        return Some(".");
    }
    DIRECTORIES.iter().copied().find(|directory| tree.exists(&format!("{directory}/index.html")))
}
