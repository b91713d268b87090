//! FastAPI and Starlette, on uvicorn: the module and the variable are found by reading.

use model::Recipe;

use super::python::path;
use super::python_code::{Callable, find_made_by};
use super::{Framework, RecipeError, sqlite, venv, web_only};
use crate::procfile::PROCFILE;
use crate::source::SourceTree;

const CONSTRUCTORS: &[&str] = &["FastAPI", "Starlette"];

pub struct FastApi;

impl Framework for FastApi {
    fn name(&self) -> &'static str {
        "fastapi"
    }

    fn looks_for(&self) -> &'static str {
        "a *.py with 'app = FastAPI(...)' or 'app = Starlette(...)'"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        find_made_by(tree, CONSTRUCTORS).map(|callable| {
            format!("{} makes the ASGI application '{}'", callable.file, callable.name)
        })
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let processes = match find_made_by(tree, CONSTRUCTORS) {
            Some(callable) => web_only(uvicorn(&callable), None),
            None if tree.exists(PROCFILE) => Default::default(),
            None => {
                let why = "no file makes it: write 'app = FastAPI()' at the left margin of main.py";
                return Err(RecipeError(why.into()));
            }
        };
        let package =
            match tree.named("*.py").any(|(file, _)| tree.mentions(file, "import FastAPI")) {
                true => "fastapi",
                false => "starlette",
            };
        let mut recipe = Recipe {
            processes,
            path: path(true),
            persist: sqlite::named_in_code(tree, "*.py"),
            ..Recipe::default()
        };
        venv::install(tree, &[package, "uvicorn"])?.give(&mut recipe);
        Ok(recipe)
    }
}

fn uvicorn(callable: &Callable) -> String {
    let directory = callable.directory.map(|d| format!(" --app-dir {d}")).unwrap_or_default();
    let factory = if callable.factory { " --factory" } else { "" };
    format!(
        "{}/uvicorn --host \"$HOST\" --port \"$PORT\" --no-access-log{directory}{factory} '{}'",
        venv::BIN,
        callable.target(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uvicorn_is_told_where_the_application_is() {
        let code = "from fastapi import FastAPI\napi = FastAPI(\n    title='x')\n";
        let tree = SourceTree::from_pairs([("main.py", code)]);
        assert_eq!(
            FastApi.detect(&tree).as_deref(),
            Some("main.py makes the ASGI application 'api'")
        );
        let recipe = FastApi.recipe(&tree).unwrap();
        let web = recipe.processes.values().next().unwrap();
        assert!(web.command.ends_with("--no-access-log 'main:api'"), "{}", web.command);
        assert!(recipe.build[1].name.starts_with("Adding fastapi, uvicorn"));
        assert!(FastApi.recipe(&SourceTree::new()).is_err());
    }
}
