//! Configuration variables. A change makes a new release of the same code, so that it reaches every
//! process without a gap and can be rolled back. Values are never logged.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use model::TypedKey;
use model::change::ChangePart;

use super::audit::Underway;
use super::builds::{self, RebuildWhen};
use super::caller::Caller;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::{self, ConfigVariables};
use super::releases::{self, Draft};
use super::{Shared, isolation};
use api_types::{ConfigChange, Configured};

/// The limit of all names and values together; certificates and keys fit in it many times (Heroku's
/// limit is 64 KB).
const CONFIG_BYTES_MAX: usize = 256 * 1024;

pub async fn list(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<ConfigVariables>, Problem> {
    let app = records::require(&*api.store, &app).await?;
    Ok(Json(records::config(&*api.store, &app.name).await?))
}

pub async fn change(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(entry): Extension<Underway>,
    Path(app): Path<String>,
    JsonBody(asked): JsonBody<ConfigChange>,
) -> Result<Json<Configured>, Problem> {
    for (key, value) in &asked {
        check(key, value.as_deref())?;
    }
    let _changing = api.changes.lock().await;
    let mut app = records::require(&*api.store, &app).await?;
    let mut config = records::config(&*api.store, &app.name).await?;
    let names: Vec<String> = asked.keys().cloned().collect();
    let changed = apply(&mut config, asked);
    let bytes: usize = config.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > CONFIG_BYTES_MAX {
        return Err(Problem::invalid(
            "config_too_large",
            format!(
                "all variables together would take {bytes} bytes; {CONFIG_BYTES_MAX} is the most"
            ),
        )
        .hint("keep large values in files of the application"));
    }
    let application = app.name.to_string();
    if changed.is_empty() {
        return Ok(Json(Configured { application, changed, released: None }));
    }
    let Some(current) = app.serving().or(app.current()).cloned() else {
        let parts = vec![ChangePart::Variables { names }];
        entry.describe(&app, api.now(), parts).await?;
        records::write(&*api.store, TypedKey::Config(app.name.clone()), &config).await?;
        return Ok(Json(Configured { application, changed, released: None }));
    };
    let note = changed.join(", ");
    isolation::check(&api, &caller, current.recipe.asked().isolation).await?;
    let id = releases::next_id(&api, &app).await?;
    entry.describe(&app, api.now(), vec![app.change_to(&id, &note)]).await?;
    records::write(&*api.store, TypedKey::Config(app.name.clone()), &config).await?;
    let (source, recipe) = (current.source, &current.recipe);
    let build = builds::choose(&api, &app, source, recipe, &config, RebuildWhen::Never).await?;
    let draft = Draft::from_release(&current, id, build.id, config, (note, entry.by()));
    let release = releases::make(&api, &mut app, draft).await?;
    let mut released = releases::released(&api, &app, &release);
    released.notes = build.note.into_iter().collect();
    Ok(Json(Configured { application, changed, released: Some(released) }))
}

/// Applies the changes and returns those that really changed something, for the release's note:
/// names without values.
fn apply(config: &mut ConfigVariables, asked: ConfigChange) -> Vec<String> {
    let mut changed = Vec::new();
    for (key, value) in asked {
        match value {
            Some(value) if config.get(&key) != Some(&value) => {
                changed.push(format!("set {key}"));
                config.insert(key, value);
            }
            None if config.remove(&key).is_some() => changed.push(format!("unset {key}")),
            _ => {}
        }
    }
    changed
}

fn check(key: &str, value: Option<&str>) -> Result<(), Problem> {
    let shown: String = key.escape_debug().take(80).collect();
    if !recipe_core::manifest::is_variable_name(key) {
        return Err(Problem::invalid(
            "invalid_variable",
            format!("'{shown}' cannot be a variable's name"),
        )
        .hint("use letters, digits and underscores, not starting with a digit"));
    }
    if recipe_core::manifest::is_platform_variable(key) {
        return Err(Problem::invalid(
            "reserved_variable",
            format!("{shown} is given by the platform to each process"),
        )
        .hint(
            "the application's public port is set by `cortex apps create --port` or in cortex.toml",
        ));
    }
    if value.is_some_and(|value| value.contains('\0')) {
        let detail = format!("the value of {shown} holds a zero byte");
        return Err(Problem::invalid("invalid_variable", detail)
            .hint("an environment cannot carry one: encode the value, for example as base64"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_is_noted() {
        let mut config: ConfigVariables =
            [("A".into(), "1".into()), ("B".into(), "2".into())].into();
        let asked = [
            ("A".to_string(), Some("1".to_string())),
            ("B".into(), None),
            ("C".into(), Some("3".into())),
            ("D".into(), None),
        ];
        assert_eq!(apply(&mut config, asked.into()), ["unset B", "set C"]);
        assert_eq!(config.keys().collect::<Vec<_>>(), ["A", "C"]);
    }

    #[test]
    fn names_are_checked() {
        assert!(check("DATABASE_URL", Some("x")).is_ok());
        for bad in ["", "1A", "A-B", "A B", "PORT", "CORTEX_X", "ä"] {
            assert!(check(bad, Some("x")).is_err(), "{bad}");
        }
        assert!(check("A", Some("\0")).is_err());
    }
}
