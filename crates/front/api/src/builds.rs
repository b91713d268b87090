//! The choice of the build that a new release runs: an existing one if source, recipe and the
//! variables that become part of a build are the same.

use model::build::BUILD_HASH_BYTES;
use model::value::ContentHash;
use model::{BuildId, Recipe, Release, RolloutPhase, TypedKey};
use serde::Serialize;

use super::Api;
use super::problem::Problem;
use super::records::{self, ApplicationRecords, ConfigVariables};

/// The build of a release that is being made.
#[derive(Clone, Debug, PartialEq)]
pub struct Build {
    pub id: BuildId,
    /// A remark for the person who waits for the release: why it is built again, or that it is not.
    pub note: Option<String>,
}

/// The condition under which something is built again although the same build is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildWhen {
    Never,
    /// After a failure, since trying the same release again is of use only if it is built again.
    AfterFailure,
    /// Always, since dependencies that the source leaves open may have moved on.
    Always,
}

/// The inputs of a build, which identify it.
#[derive(PartialEq, Serialize)]
struct Ingredients<'a> {
    source: ContentHash,
    recipe: Recipe,
    variables: Vec<(&'a str, &'a str)>,
}

impl<'a> Ingredients<'a> {
    fn new(source: ContentHash, recipe: &Recipe, config: &'a ConfigVariables) -> Ingredients<'a> {
        let baked = config.iter().filter(|(name, _)| recipe.bakes(name));
        let variables = baked.map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Ingredients { source, recipe: steps_alone(recipe), variables }
    }

    /// Returns the build's identifier; `salt` tells a build that is to be made anew from earlier
    /// ones.
    fn build(&self, salt: &str) -> BuildId {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&model::record::encode(self));
        hasher.update(salt.as_bytes());
        let mut hash = [0; BUILD_HASH_BYTES];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..BUILD_HASH_BYTES]);
        BuildId::Content(hash)
    }
}

/// Returns the recipe without what only says how the result is run or is meant for people. Fields
/// that a newer version adds count as part of the build.
fn steps_alone(recipe: &Recipe) -> Recipe {
    Recipe {
        decided_by: String::new(),
        release: Vec::new(),
        portable: None,
        processes: Default::default(),
        baked: Vec::new(),
        persist: Vec::new(),
        keeps_files: false,
        persist_shared: false,
        statics: Vec::new(),
        ports: Vec::new(),
        cron: Vec::new(),
        notes: Vec::new(),
        isolation_asked: None,
        ..recipe.clone()
    }
}

/// Chooses the build of a new release, which is made behind the wall that an owner wants around the
/// application. The caller holds `Api::changes`.
pub async fn choose(
    api: &Api,
    app: &ApplicationRecords,
    source: ContentHash,
    recipe: &Recipe,
    config: &ConfigVariables,
    anew: RebuildWhen,
) -> Result<Build, Problem> {
    let mut recipe = recipe.clone();
    recipe.put_behind(app.spec.isolation.as_ref());
    let recipe = &recipe;
    let wanted = Ingredients::new(source, recipe, config);
    let mut changed = None;
    for release in app.releases.iter().rev() {
        if release.source != source || steps_alone(&release.recipe) != wanted.recipe {
            continue;
        }
        let at = TypedKey::ConfigAt(app.name.clone(), release.id.clone());
        let before: ConfigVariables = records::read(&*api.store, at).await?.unwrap_or_default();
        if Ingredients::new(source, recipe, &before) != wanted {
            changed = changed.or_else(|| Some(differing(recipe, &before, config)));
            continue;
        }
        let again = anew == RebuildWhen::AfterFailure && has_failed(app, release);
        if anew == RebuildWhen::Always || again {
            let salt = format!("{} {}", api.node, api.now());
            return Ok(Build { id: wanted.build(&salt), note: None });
        }
        let note = (anew != RebuildWhen::Never).then(|| reused(app, release)).flatten();
        return Ok(Build { id: release.build_id(), note });
    }
    let note = changed.map(|names| {
        let verb = if names.len() == 1 { "is" } else { "are" };
        format!("{} {verb} part of what is built: it is built again", names.join(", "))
    });
    Ok(Build { id: wanted.build(""), note })
}

fn reused(app: &ApplicationRecords, release: &Release) -> Option<String> {
    let builds = !release.recipe.build.is_empty();
    let label = app.label(&release.id);
    builds.then(|| {
        format!(
            "Nothing that is built has changed: the build of {label} is used; `cortex push \
             --rebuild` makes a new one"
        )
    })
}

fn has_failed(app: &ApplicationRecords, release: &Release) -> bool {
    app.rollout.as_ref().is_some_and(|rollout| {
        rollout.phase == RolloutPhase::Failed && rollout.target.as_ref() == Some(&release.id)
    })
}

fn differing(recipe: &Recipe, before: &ConfigVariables, after: &ConfigVariables) -> Vec<String> {
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.retain(|name| recipe.bakes(name) && before.get(*name) != after.get(*name));
    names.sort();
    names.dedup();
    names.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use model::ProcessType;
    use model::release::{ProcessRecipe, Step};

    use super::*;

    const SOURCE: ContentHash = ContentHash([3; 32]);

    fn recipe(step: &str) -> Recipe {
        Recipe {
            build: vec![Step { name: "Building".into(), command: step.into() }],
            baked: vec!["VITE_*".into()],
            ..Recipe::default()
        }
    }

    fn config(pairs: &[(&str, &str)]) -> ConfigVariables {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn build(source: ContentHash, step: &str, variables: &[(&str, &str)]) -> BuildId {
        Ingredients::new(source, &recipe(step), &config(variables)).build("")
    }

    #[test]
    fn a_build_is_known_by_source_recipe_and_baked_variables() {
        let one = build(SOURCE, "make", &[("VITE_A", "1")]);
        assert_eq!(one, build(SOURCE, "make", &[("VITE_A", "1"), ("PASSWORD", "x")]));
        for other in [
            build(ContentHash([4; 32]), "make", &[("VITE_A", "1")]),
            build(SOURCE, "make all", &[("VITE_A", "1")]),
            build(SOURCE, "make", &[("VITE_A", "2")]),
            build(SOURCE, "make", &[]),
        ] {
            assert_ne!(one, other);
        }
        let mut other = recipe("make");
        let web = ProcessRecipe { command: "run".into(), ..ProcessRecipe::default() };
        other.processes.insert(ProcessType::web(), web);
        other.persist.push("data".into());
        let variables = config(&[("VITE_A", "1")]);
        assert_eq!(one, Ingredients::new(SOURCE, &other, &variables).build(""));
        assert_ne!(one, Ingredients::new(SOURCE, &other, &variables).build("again"));
    }
}
