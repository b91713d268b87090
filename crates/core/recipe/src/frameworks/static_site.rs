//! A site of files: nothing runs, the router serves it.

use model::Recipe;
use model::release::StaticMount;

use super::package_json::Package;
use super::{Framework, RecipeError, front_end, site_mount};
use crate::manifest::relative_path;
use crate::source::SourceTree;

/// The directories in which the pages may be, in order; the root itself is last.
const DIRECTORIES: &[&str] = &["public", "dist", "build", "_site", "out", "htdocs"];
pub const STATICFILE: &str = "Staticfile";

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
        // A user who chooses this type for a site that is built wants it built.
        if Package::read(tree)
            .is_ok_and(|package| front_end::usual_build_script(&package).is_some())
        {
            return front_end::FrontEnd.recipe(tree);
        }
        let wanted = staticfile(tree)?;
        if let Some(root) = wanted.root.as_ref().filter(|root| !tree.has_directory(root)) {
            let why = format!("{STATICFILE} names the root '{root}', which is not there");
            return Err(RecipeError(why));
        }
        let found = directory_with_index(tree).unwrap_or(".");
        let directory = wanted.root.as_deref().unwrap_or(found);
        let statics = site_mount("/", directory, wanted.fallback.as_deref());
        let mut notes = wanted.notes;
        notes.extend(statics.first().and_then(|mount| kept_back_note(tree, mount)));
        Ok(Recipe { statics, notes, ..Recipe::default() })
    }
}

/// What a Staticfile asks for.
#[derive(Default)]
pub struct Staticfile {
    pub root: Option<String>,
    pub fallback: Option<String>,
    pub notes: Vec<String>,
}

/// Returns the Staticfile; an empty one if there is no such file.
pub fn staticfile(tree: &SourceTree) -> Result<Staticfile, RecipeError> {
    let mut found = Staticfile::default();
    for line in tree.text(STATICFILE).unwrap_or_default().lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim().trim_matches(['"', '\'']);
        match key.trim() {
            "root" => {
                let root = relative_path(value)
                    .map_err(|why| RecipeError(format!("{STATICFILE}: root: {why}")))?;
                found.root = Some(root);
            }
            "pushstate" | "index_fallback" if !matches!(value, "" | "false" | "disabled") => {
                found.fallback = Some("index.html".into());
            }
            key if key.starts_with('#') || key == "pushstate" || key == "index_fallback" => {}
            key => found.notes.push(format!("{STATICFILE}: '{}' was ignored", key.escape_debug())),
        }
    }
    Ok(found)
}

/// Returns a note if pages ask for what nobody is given: it would be missed without a word.
fn kept_back_note(tree: &SourceTree, mount: &StaticMount) -> Option<String> {
    let directory = if mount.directory == "." { "" } else { mount.directory.as_str() };
    let program = tree.under(directory).find(|(path, _)| path.ends_with(".php"));
    if let Some((path, _)) = program {
        return Some(format!("{path} is neither run nor shown: PHP runs beside an index.php"));
    }
    let mut pages = tree.under(directory).filter(|(path, _)| path.ends_with(".html"));
    let asks = |text: &str| {
        ["\"node_modules/", "\"/node_modules/", "\"./node_modules/"]
            .iter()
            .any(|one| text.contains(one))
    };
    let (page, _) =
        pages.find(|(_, file)| mount.directory == "." && file.text.as_deref().is_some_and(asks))?;
    Some(format!("{page} loads from node_modules/, which is not served: copy what it needs"))
}

fn directory_with_index(tree: &SourceTree) -> Option<&'static str> {
    if tree.exists("index.html") {
        return Some(".");
    }
    DIRECTORIES.iter().copied().find(|directory| tree.exists(&format!("{directory}/index.html")))
}
