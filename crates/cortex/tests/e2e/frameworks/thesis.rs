//! The four frameworks of the thesis on one node at the same time: Rails, Django, Pyramid and
//! Yesod, each as its generator makes it. Each goes its way without disturbing the others.

use std::path::{Path, PathBuf};

use super::{django, node, pyramid, rails};
use crate::outside::{Callers, Site};
use crate::project::{edit, of_files, tool};

/// The number of answers of each application between two events at another one.
const ANSWERS_BETWEEN: u64 = 10;

/// The first page of Yesod's book, with the address that hosts give.
const YESOD: &str = r#"{-# LANGUAGE OverloadedStrings, QuasiQuotes, TemplateHaskell, TypeFamilies #-}
{-# LANGUAGE MultiParamTypeClasses #-}
import Data.String (fromString)
import Network.Wai.Handler.Warp (defaultSettings, runSettings, setHost, setPort)
import System.Environment (getEnv)
import Yesod

data HelloWorld = HelloWorld

mkYesod "HelloWorld" [parseRoutes|
/ HomeR GET
|]

instance Yesod HelloWorld where
    makeSessionBackend _ = return Nothing

getHomeR :: Handler Html
getHomeR = defaultLayout [whamlet|Hello World!|]

main :: IO ()
main = do
    host <- getEnv "HOST"
    port <- getEnv "PORT"
    application <- toWaiApp HelloWorld
    runSettings (setHost (fromString host) (setPort (read port) defaultSettings)) application
"#;

/// Generates a project by `cabal init` without a package index: what the operating system has is
/// enough.
fn generate_yesod(directory: &Path) -> PathBuf {
    let project = directory.join("renamed-yesod");
    std::fs::create_dir(&project).unwrap();
    let options = "--config-file=/dev/null init --non-interactive --exe --package-name generated";
    tool(&project, "cabal", &options.split_whitespace().collect::<Vec<_>>());
    let cabal = project.join("generated.cabal");
    let text = std::fs::read_to_string(&cabal).unwrap();
    let base = text.lines().find(|line| line.trim_start().starts_with("build-depends:"));
    edit(&cabal, base.expect("it depends on base"), "    build-depends: base, warp, yesod");
    of_files(&project, &[("app/Main.hs", YESOD)]);
    project
}

#[test]
fn rails_django_pyramid_and_yesod_are_hosted_together() {
    let node = node();
    let directory = node.directory.path();
    let (rails, django) = (rails::generate(directory), django::generate(directory));
    rails::add_books(&rails);
    let (pyramid, yesod) = (pyramid::generate(directory), generate_yesod(directory));
    let push = |project: &Path, name: &str, path: &'static str, needle: &'static str| {
        let site = node.push(project, name);
        site.get(path).assert_ok(needle);
        let by_name = Site { host: format!("{name}.localhost"), port: node.http_port };
        by_name.get(path).assert_ok(needle);
        Callers::start_gently(&by_name, path, &[needle, "Visit the temple of", "Hello again!"])
    };
    let callers = [
        push(&rails, "rails-site", "/books", "<h1>Books</h1>"),
        push(&django, "django-site", "/", "The install worked successfully"),
        push(&pyramid, "pyramid-site", "/", "Welcome to"),
        push(&yesod, "yesod-site", "/", "Hello World!"),
    ];
    let all_answer = || callers.iter().for_each(|callers| callers.answered_more(ANSWERS_BETWEEN));
    all_answer();
    edit(&pyramid.join(pyramid::PAGE), "Welcome to", "Visit the temple of");
    node.push(&pyramid, "pyramid-site").get("/").assert_ok("Visit the temple of");
    all_answer();
    edit(&yesod.join("app/Main.hs"), "Hello World!", "Hello again!");
    node.push(&yesod, "yesod-site").get("/").assert_ok("Hello again!");
    for (name, count) in [("rails-site", 1), ("django-site", 3), ("yesod-site", 3)] {
        node.cortex(&["scale", &format!("web={count}"), "-a", name]);
        node.await_ready(name, "web", count);
    }
    node.cortex(&["rollback", "-a", "yesod-site"]);
    all_answer();
    callers.into_iter().for_each(Callers::finish_without_failure);
    let yesod = Site { host: "yesod-site.localhost".into(), port: node.http_port };
    yesod.get("/").assert_ok("Hello World!");
}
