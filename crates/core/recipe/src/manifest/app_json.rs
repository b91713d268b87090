//! Heroku's `app.json`, as far as there is something here that it can mean.

use model::ProcessType;
use serde_json::{Map, Value};

use super::{
    APP_JSON, COUNT_MAX, LIST_LENGTH_MAX, Manifest, ManifestError, application_name,
    is_platform_variable, is_variable_name, platform_gives,
};

/// Keys that describe, or that are about Heroku's own offers: ignored without a note.
const DESCRIPTIVE: &[&str] = &[
    "description",
    "keywords",
    "website",
    "repository",
    "logo",
    "success_url",
    "stack",
    "$schema",
];
/// The keys by one of which the file is told from others of the same name.
const TELLING: &[&str] =
    &["env", "formation", "scripts", "healthchecks", "addons", "buildpacks", "stack", "cron"];

/// Parses the file; `None` if it is somebody else's.
pub fn parse(text: &str) -> Result<Option<Manifest>, ManifestError> {
    let error = |why: String| ManifestError { file: APP_JSON, why };
    let value: Value = serde_json::from_str(text.trim_start_matches('\u{feff}'))
        .map_err(|cause| error(format!("it is not valid JSON: {cause}")))?;
    let Value::Object(object) = value else {
        return Err(error("a JSON object was expected".into()));
    };
    if !TELLING.iter().any(|key| object.contains_key(*key)) {
        return Ok(None);
    }
    let mut manifest = Manifest { files: vec![APP_JSON.into()], ..Manifest::default() };
    for (key, value) in &object {
        match (key.as_str(), value) {
            ("name", Value::String(name)) => {
                manifest.name = Some(application_name(name, APP_JSON, &mut manifest.notes));
            }
            ("env", Value::Object(variables)) => env(variables, &mut manifest).map_err(error)?,
            ("formation", Value::Object(processes)) => {
                formation(processes, &mut manifest).map_err(error)?;
            }
            ("scripts", Value::Object(scripts)) => self::scripts(scripts, &mut manifest),
            ("healthchecks", Value::Object(checks)) => {
                manifest.health =
                    super::health::of_checks(checks, &mut manifest.notes).map_err(error)?;
            }
            ("cron", Value::Array(entries)) => {
                manifest.cron =
                    super::cron::of_app_json(entries, &mut manifest.notes).map_err(error)?;
            }
            (key, _) if DESCRIPTIVE.contains(&key) => {}
            ("name" | "env" | "formation" | "scripts" | "healthchecks" | "cron", _) => {
                return Err(error(format!("'{key}' has a value of the wrong kind")));
            }
            (key, _) => manifest.notes.push(ignored(key)),
        }
    }
    Ok(Some(manifest))
}

pub(super) fn ignored(key: &str) -> String {
    format!("{APP_JSON}: '{}' was ignored: there is nothing like it here", key.escape_debug())
}

fn env(variables: &Map<String, Value>, manifest: &mut Manifest) -> Result<(), String> {
    if variables.len() > LIST_LENGTH_MAX {
        return Err(format!("'env' has more than {LIST_LENGTH_MAX} variables"));
    }
    for (name, value) in variables {
        if !is_variable_name(name) {
            return Err(format!("'{}' in 'env' is not a variable's name", name.escape_debug()));
        }
        if is_platform_variable(name) {
            manifest.notes.push(platform_gives(APP_JSON, name));
            continue;
        }
        let wanted = match value {
            Value::Object(wanted) => wanted.clone(),
            plain => Map::from_iter([("value".to_owned(), plain.clone())]),
        };
        let required = wanted.get("required").and_then(Value::as_bool).unwrap_or(true);
        match (wanted.get("value"), wanted.get("generator").and_then(Value::as_str)) {
            (_, Some("secret")) => manifest.secrets.push(name.clone()),
            (Some(Value::String(value)), _) => {
                manifest.environment.insert(name.clone(), value.clone());
            }
            (Some(value @ (Value::Number(_) | Value::Bool(_))), _) => {
                manifest.environment.insert(name.clone(), value.to_string());
            }
            (Some(Value::Null) | None, _) if required => manifest.required.push(name.clone()),
            (Some(Value::Null) | None, _) => {}
            _ => return Err(format!("'env.{name}' has a value that is not a string")),
        }
    }
    Ok(())
}

fn formation(processes: &Map<String, Value>, manifest: &mut Manifest) -> Result<(), String> {
    for (name, wanted) in processes {
        let name =
            if name.eq_ignore_ascii_case(ProcessType::WEB) { ProcessType::WEB } else { name };
        let process: ProcessType = name.parse().map_err(|error| format!("{error}"))?;
        let Some(quantity) = wanted.get("quantity") else { continue };
        let count = quantity.as_u64().filter(|count| *count <= COUNT_MAX.into());
        let Some(count) = count.and_then(|count| u32::try_from(count).ok()) else {
            return Err(format!("'formation.{name}.quantity' must be 0 to {COUNT_MAX}"));
        };
        manifest.processes.entry(process).or_default().count = Some(count);
    }
    Ok(())
}

fn scripts(scripts: &Map<String, Value>, manifest: &mut Manifest) {
    for (name, command) in scripts {
        match (name.as_str(), command) {
            ("postdeploy", Value::String(command)) => {
                manifest.postdeploy.get_or_insert_with(|| command.clone());
                manifest.notes.push(format!(
                    "{APP_JSON}: postdeploy runs at each release, not only at the first one"
                ));
            }
            ("dokku", Value::Object(scripts)) => dokku(scripts, manifest),
            (name, _) => manifest.notes.push(ignored(&format!("scripts.{name}"))),
        }
    }
}

/// Reads Dokku's own scripts: they run with each release there too.
fn dokku(scripts: &Map<String, Value>, manifest: &mut Manifest) {
    for (name, command) in scripts {
        match (name.as_str(), command) {
            ("predeploy", Value::String(command)) => manifest.predeploy = Some(command.clone()),
            ("postdeploy", Value::String(command)) => manifest.postdeploy = Some(command.clone()),
            (name, _) => manifest.notes.push(ignored(&format!("scripts.dokku.{name}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_cortex_can_honour_are_honoured() {
        let text = r#"{
            "name": "My Shop", "description": "x", "addons": ["heroku-postgresql"],
            "env": {
                "GREETING": "hello", "KEY": {"generator": "secret"}, "DEPTH": {"value": 3},
                "MAIL": {"description": "where to"}, "MAYBE": {"required": false}
            },
            "formation": {"web": {"quantity": 3, "size": "m"}, "worker": {"quantity": 0}},
            "scripts": {"postdeploy": "rake seed", "test": "x"},
            "healthchecks": {"web": [{"type": "startup", "path": "/up", "timeout": 2, "wait": 3}]}
        }"#;
        let manifest = parse(text).unwrap().unwrap();
        assert_eq!(manifest.name.unwrap().as_str(), "my-shop");
        assert_eq!(manifest.environment["GREETING"], "hello");
        assert_eq!(manifest.environment["DEPTH"], "3");
        assert_eq!(manifest.secrets, ["KEY"]);
        assert_eq!(manifest.required, ["MAIL"]);
        let counts: Vec<Option<u32>> = manifest.processes.values().map(|p| p.count).collect();
        assert_eq!(counts, [Some(3), Some(0)]);
        assert_eq!(manifest.postdeploy.as_deref(), Some("rake seed"));
        assert_eq!(manifest.health.path.as_deref(), Some("/up"));
        assert_eq!(manifest.health.timeout_ms, Some(2_000));
        assert_eq!(manifest.health.interval_ms, Some(3_000));
        let notes = manifest.notes.join("\n");
        assert!(notes.contains("addons") && notes.contains("scripts.test"), "{notes}");
    }

    #[test]
    fn what_dokku_and_the_platform_have_in_common_is_honoured() {
        let text = r#"{
            "env": {"PORT": "3000", "HOST": {"required": true}, "CORTEX_X": "y"},
            "formation": {"Web": {"quantity": 2}},
            "scripts": {"dokku": {"predeploy": "make", "postdeploy": "warm", "prebuild": "x"},
                        "postdeploy": "seed"},
            "cron": [
                {"command": "bin/report --daily", "schedule": "@daily"},
                {"command": "bin/report --all", "schedule": "0 5 * * *",
                 "concurrency_policy": "replace"},
                {"command": "bin/off", "schedule": "0 5 * * *", "maintenance": true}
            ]
        }"#;
        let manifest = parse(text).unwrap().unwrap();
        assert!(manifest.environment.is_empty() && manifest.required.is_empty());
        assert_eq!(manifest.processes[&ProcessType::web()].count, Some(2));
        assert_eq!(manifest.predeploy.as_deref(), Some("make"));
        assert_eq!(manifest.postdeploy.as_deref(), Some("warm"));
        let entries: Vec<(&str, &str)> =
            manifest.cron.iter().map(|one| (one.name.as_str(), one.command.as_str())).collect();
        let expected =
            [("bin-report-daily", "bin/report --daily"), ("bin-report-all", "bin/report --all")];
        assert_eq!(entries, expected);
        let notes = manifest.notes.join("\n");
        for said in ["env.PORT", "scripts.dokku.prebuild", "concurrency_policy", "bin/off"] {
            assert!(notes.contains(said), "{said}: {notes}");
        }
        let error = parse(r#"{"cron": [{"command": "x", "schedule": "61 * * * *"}]}"#).unwrap_err();
        assert!(error.to_string().contains("'61' is not a valid minute"), "{error}");
    }

    #[test]
    fn mistakes_are_named_and_unknown_keys_ignored() {
        for (text, expected) in [
            ("{", "not valid JSON"),
            ("[]", "a JSON object"),
            (r#"{"env": 3}"#, "'env' has a value of the wrong kind"),
            (r#"{"env": {"A B": "x"}}"#, "not a variable's name"),
            (r#"{"formation": {"web": {"quantity": -1}}}"#, "formation.web.quantity"),
            (r#"{"formation": {"w b": {"quantity": 1}}}"#, "'w b' cannot be a process type"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        assert_eq!(parse(r#"{"expo": {"name": "phone"}}"#), Ok(None));
    }
}
