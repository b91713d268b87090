//! The directories that the router serves, out of what the framework and the project's own file
//! say.

use model::release::{StaticMount, Step};
use model::{ProcessType, Recipe};

use super::{DetectError, recipe_of};
use crate::frameworks::{front_end, site_mount};
use crate::manifest::Manifest;
use crate::procfile::PROCFILE;
use crate::source::SourceTree;

const PACKAGE_JSON: &str = "package.json";

/// Returns the recipe of a project of which `static.output` says that it is a site, if Node.js
/// builds it and nothing of its own answers requests.
pub fn of_project(tree: &SourceTree, manifest: &Manifest) -> Option<Result<Recipe, DetectError>> {
    let web = manifest.processes.iter().any(|(name, one)| name.is_web() && one.command.is_some());
    let procfile = tree
        .text(PROCFILE)
        .is_some_and(|text| text.lines().any(|line| line.trim_start().starts_with("web:")));
    if web || procfile || !tree.exists(PACKAGE_JSON) {
        return None;
    }
    let recipe = recipe_of(&front_end::FrontEnd, tree, String::new());
    // The build may be that of the project's own file.
    let own_build = manifest.build.is_some() && recipe.is_err();
    (!own_build).then_some(recipe)
}

/// Applies what the manifest says of a site; `finding` is the step that looks for what a build
/// left.
pub fn apply(recipe: &mut Recipe, manifest: &Manifest, finding: Option<Step>) {
    let is_root = |mount: &StaticMount| mount.prefix == "/";
    let replaced = manifest.statics.iter().any(is_root);
    let has_web = recipe.processes.keys().any(ProcessType::is_web);
    match &manifest.site {
        Some(site) => {
            let old = recipe.statics.iter().find(|mount| is_root(mount));
            let fallback = site.fallback.clone().or(old.and_then(|old| old.fallback.clone()));
            if finding.is_some() || !has_web {
                recipe.statics.retain(|mount| !is_root(mount));
            }
            let root = site_mount("/", &site.output, fallback.as_deref());
            recipe.statics.splice(0..0, root);
            let step = front_end::of_output(&site.output);
            front_end::put_finding(recipe, step);
        }
        // A site has one root: its own file's, or what the build left.
        None if replaced && !has_web => recipe.statics.retain(|mount| !is_root(mount)),
        None => {
            if let Some(step) = finding {
                front_end::put_finding(recipe, step);
            }
        }
    }
    recipe.statics.splice(0..0, manifest.statics.iter().cloned());
}
