//! A project of which only its Procfile is known: nothing is built, the commands run as they are
//! written.

use model::Recipe;

use super::{Framework, RecipeError};
use crate::procfile::PROCFILE;
use crate::source::SourceTree;

pub struct ProcfileOnly;

impl Framework for ProcfileOnly {
    fn name(&self) -> &'static str {
        "procfile"
    }

    fn looks_for(&self) -> &'static str {
        "a Procfile with a line such as 'web: ./server'"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        tree.exists(PROCFILE).then(|| format!("{PROCFILE} says what runs"))
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        if tree.exists(PROCFILE) {
            Ok(Recipe::default())
        } else {
            Err(RecipeError(format!(
                "there is no {PROCFILE}: add one with the line 'web: COMMAND'"
            )))
        }
    }
}
