//! Angular: `angular.json` says where its pages go, and whether a server makes them.

use serde_json::Value;

use super::super::commands::option_of;
use super::super::text::join;
use super::super::{FrontEndRole, Site};
use crate::frameworks::shell_word;
use crate::source::SourceTree;

const ANGULAR_JSON: &str = "angular.json";
const INDEX: &str = "index.html";
/// The file that the browser makes pages out of where others were made beforehand.
const CLIENT_INDEX: &str = "index.csr.html";

pub fn role(tree: &SourceTree, script: &str, site: Site) -> FrontEndRole {
    let fallback = Some(INDEX.to_owned());
    let settings: Value = tree
        .text(ANGULAR_JSON)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let Some((name, build)) = application(&settings, script) else {
        return FrontEndRole::Site(Site { fallback, ..site });
    };
    let options = &build["options"];
    let builder = build["builder"].as_str().unwrap_or_default();
    let is_application = builder.ends_with(":application");
    let path = &options["outputPath"];
    let option = option_of(script, "ng", &["--output-path"]);
    let base = option
        .or_else(|| path.as_str())
        .or_else(|| path["base"].as_str())
        .map_or_else(|| format!("dist/{name}"), str::to_owned);
    // Builders before the application's write the pages into the directory itself.
    let below = match (is_application, path["browser"].as_str()) {
        (true, Some(browser)) => browser,
        (true, None) => "browser",
        (false, _) => "",
    };
    let server = &options["ssr"];
    let has_server = is_application && (server.is_object() || server.as_bool() == Some(true));
    let mode = options["outputMode"].as_str();
    let prerenders =
        options["prerender"].as_bool() == Some(true) || options["prerender"].is_object();
    if has_server && mode != Some("static") {
        let Some(server) = join(&base, "server/server.mjs") else {
            return FrontEndRole::Site(Site { fallback, ..site });
        };
        return FrontEndRole::Server(format!("node {}", shell_word(&server)));
    }
    let made_before = has_server || mode == Some("static") || (is_application && prerenders);
    let fallback = if made_before { Some(CLIENT_INDEX.to_owned()) } else { fallback };
    FrontEndRole::Site(Site { output: join(&base, below), fallback, ..site })
}

/// Returns the application that the script builds: the one that it names, the default, or the only
/// one.
fn application<'a>(settings: &'a Value, script: &str) -> Option<(&'a str, &'a Value)> {
    let projects = settings["projects"].as_object()?;
    let target = |project: &'a Value| {
        let targets = if project["architect"].is_object() { "architect" } else { "targets" };
        &project[targets]["build"]
    };
    let applications = || {
        projects.iter().filter(|(_, project)| {
            project["projectType"].as_str().is_none_or(|kind| kind == "application")
        })
    };
    let named = applications()
        .find(|(name, _)| script.split_whitespace().any(|word| word == name.as_str()));
    let default = settings["defaultProject"].as_str();
    let found = named
        .or_else(|| applications().find(|(name, _)| Some(name.as_str()) == default))
        .or_else(|| applications().next())?;
    Some((found.0.as_str(), target(found.1)))
}
