//! Sites that are built from their sources: single-page applications, and pages that a generator
//! writes. Nothing runs; the router serves what the build left, and nothing else.

mod commands;
mod finding;
mod generators;
mod javascript;
mod outside_node;
mod text;

use model::Recipe;
use model::release::{Portable, Step};

use super::package_json::{PACKAGE_JSON, Package};
use super::{Framework, RecipeError, packages, site_mount, static_site};
use crate::procfile::{self, PROCFILE};
use crate::source::SourceTree;

pub use commands::is_development_server;
pub use finding::{Finding, of_output, put as put_finding, take as take_finding};
use generators::Generator;
pub use javascript::only_compiles;

pub struct FrontEnd;

/// What the files say of a project that has no server of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontEndRole {
    Site(Site),
    /// The generator makes a server, which is started by this command.
    Server(String),
    /// The generator cannot be used as it is; the text says what to do.
    Unusable(String),
}

/// A site, and how it comes about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// What names the generator: "package.json lists Vite".
    pub reason: String,
    /// The script of package.json that builds it.
    pub script: Option<String>,
    /// What builds it where no script does.
    pub command: Option<String>,
    /// The directory that has the pages afterwards; `None` if only the build tells.
    pub output: Option<String>,
    /// The file that answers for pages that the browser makes, relative to `output`.
    pub fallback: Option<String>,
    /// The path below which pages ask for their files, if that is not `/`.
    pub base: Option<String>,
}

/// Scripts of package.json that may build, in order of preference.
const BUILD_SCRIPTS: &[&str] = &["heroku-postbuild", "build"];

pub fn build_script<'a>(package: &Package, names: &[&'a str]) -> Option<&'a str> {
    names.iter().copied().find(|name| package.script(name).is_some())
}

/// Returns the script that builds a Node.js project, whatever kind of project it is.
pub fn usual_build_script(package: &Package) -> Option<&'static str> {
    build_script(package, BUILD_SCRIPTS)
}

/// Returns the role of a project; `None` for one of Node.js that has a server, or nothing to build.
pub fn role(tree: &SourceTree, package: &Package) -> Option<FrontEndRole> {
    let start = package.script("start");
    let has_server = start.is_some_and(|start| !is_development_server(package, start));
    if has_server || procfile_names_web(tree) {
        return None;
    }
    let generator = Generator::of(tree, package);
    let script = usual_build_script(package);
    match generator {
        Some(generator) => javascript::role(generator, tree, package),
        None if script.is_some() && !super::node::listens(tree, package) => {
            Some(FrontEndRole::Site(javascript::unknown(tree, package)))
        }
        None => None,
    }
}

/// Returns whether a web process of the project's own gets all requests.
fn procfile_names_web(tree: &SourceTree) -> bool {
    let parsed = tree.text(PROCFILE).map(procfile::parse);
    parsed.is_some_and(|parsed| {
        parsed.is_ok_and(|procfile| procfile.processes.keys().any(model::ProcessType::is_web))
    })
}

impl Framework for FrontEnd {
    fn name(&self) -> &'static str {
        "site"
    }

    fn looks_for(&self) -> &'static str {
        "package.json with a build script and no server, or settings of Hugo, Jekyll or MkDocs"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        if let Ok(package) = Package::read(tree) {
            let staticfile =
                tree.exists(static_site::STATICFILE) && usual_build_script(&package).is_some();
            if staticfile {
                return Some(format!("{} asks for a static site", static_site::STATICFILE));
            }
            if let Some(role) = role(tree, &package) {
                return match role {
                    FrontEndRole::Site(site) => Some(site.reason),
                    FrontEndRole::Unusable(_) => Some(format!("{PACKAGE_JSON} names a site")),
                    FrontEndRole::Server(_) => None,
                };
            }
            return None;
        }
        outside_node::of(tree).map(|(reason, _)| reason)
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        if !tree.exists(PACKAGE_JSON) {
            let Some((_, recipe)) = outside_node::of(tree) else {
                return Err(RecipeError(format!(
                    "there is no {PACKAGE_JSON} with a build script: add one, or leave the type out"
                )));
            };
            return recipe;
        }
        let package = Package::read(tree).map_err(RecipeError)?;
        let site = match role(tree, &package) {
            Some(FrontEndRole::Site(site)) => site,
            Some(FrontEndRole::Unusable(why)) => return Err(RecipeError(why)),
            // The user says that it is a site.
            Some(FrontEndRole::Server(_)) | None => javascript::unknown(tree, &package),
        };
        built_by_node(tree, &package, site)
    }
}

/// Returns the recipe of a site that Node.js builds: packages, the build, and where its pages are.
fn built_by_node(
    tree: &SourceTree,
    package: &Package,
    mut site: Site,
) -> Result<Recipe, RecipeError> {
    let mut notes = Vec::new();
    if tree.exists(static_site::STATICFILE) {
        let wanted = static_site::staticfile(tree)?;
        site.output = wanted.root.or(site.output);
        site.fallback = wanted.fallback.or(site.fallback);
        notes.extend(wanted.notes);
    }
    let packages = packages::of(tree, "", package, true).map_err(RecipeError)?;
    notes.extend(packages.notes.iter().cloned());
    let mut build = super::node::prepare(package, &packages);
    let name = "Building the site".into();
    match (&site.script, &site.command) {
        (Some(script), _) => build.push(Step { name, command: packages.run(script) }),
        (None, Some(command)) => build.push(Step { name, command: packages.call(command) }),
        (None, None) => {
            return Err(RecipeError(format!(
                "{PACKAGE_JSON} has no build script: add \"scripts\": {{ \"build\": \"COMMAND\" }}"
            )));
        }
    }
    build.extend(super::node::clean_up(package, &packages));
    let finding = Finding::new(tree, site.output.as_deref());
    build.push(finding.step());
    let directory = finding.directory();
    let mut statics = site_mount("/", &directory, site.fallback.as_deref());
    if let Some(base) = &site.base {
        statics.splice(0..0, site_mount(base, &directory, site.fallback.as_deref()));
    }
    let mut environment = super::node::environment(true);
    environment.extend(packages.environment());
    Ok(Recipe {
        build,
        portable: Some(Portable::default()),
        environment,
        path: packages.path(),
        statics,
        notes,
        ..Recipe::default()
    })
}

#[cfg(test)]
mod tests;
