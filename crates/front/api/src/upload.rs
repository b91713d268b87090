//! Push: an archive streams in, is examined, and becomes a release. Until the release is written,
//! nothing that exists is touched.

use std::io::{BufReader, Seek, SeekFrom};

use access_core::Right;
use axum::body::{Body, HttpBody};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use bytes::Bytes;
use futures_util::StreamExt;
use model::application::{STICKY_BALANCE, Settings};
use model::{ApplicationName, RolloutPhase, TypedKey};
use recipe_core::detect::{DetectError, Plan, plan_release};
use recipe_core::manifest::{CORTEX_TOML, Manifest, add_persistent};
use recipe_core::source::SourceTree;
use router_core::balance;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::audit::{NOTE_CHARS_MAX, Underway};
use super::builds::{self, RebuildWhen};
use super::caller::Caller;
use super::problem::{Problem, storage};
use super::records::{self, ApplicationRecords, ConfigVariables};
use super::releases::{self, Draft};
use super::sources::{self, Assembly};
use super::undo::parts;
use super::{Api, Shared, archive, domains, isolation, ports, team_limits};
use api_types::{ARCHIVE_BYTES_MAX, Released};
use store::{ValueFile, ValueWriter};

/// Bytes after which a client that goes on sending beyond the limit is cut off.
const DISCARDED_BYTES_MAX: u64 = 2 * ARCHIVE_BYTES_MAX;
/// Chunks that wait between the socket and the disk: memory stays bounded whatever is pushed.
const CHUNKS_WAITING_MAX: usize = 16;
/// The size of a generated secret: 256 bits, which are written in hex.
const SECRET_BYTES: usize = 32;

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct PushQuery {
    /// A note for people: where the source came from.
    #[serde(default)]
    note: Option<String>,
    /// The commit or revision that this is.
    #[serde(default)]
    revision: Option<String>,
    /// Whether to do nothing if the same source serves already.
    #[serde(default)]
    if_changed: bool,
    /// Whether to build it although the same build exists.
    #[serde(default)]
    rebuild: bool,
    /// The sources that the body, a delta, is made of, with commas between them; without them it is
    /// the archive.
    #[serde(default)]
    bases: Option<String>,
}

pub async fn push(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(entry): Extension<Underway>,
    Path(name): Path<String>,
    Query(query): Query<PushQuery>,
    body: Body,
) -> Result<(StatusCode, Json<Released>), Problem> {
    let name: ApplicationName = name.parse()?;
    let existing = records::find(&*api.store, &name).await?;
    let forced = existing.and_then(|app| app.spec.framework);
    let bases = sources::named(&api, &name, query.bases.as_deref()).await?;
    let writer = api.store.writer().await.map_err(Problem::from)?;
    let upload = receive(Assembly::new(writer, bases), body).await?;
    let hint = name.to_string();
    let (plan, file) = blocking(move || examine(upload, forced.as_deref(), &hint)).await?;
    release(&api, name, (plan, file), (caller, entry), query).await
}

/// Streams the body to a file. The disk is the slower side: the channel makes the socket wait.
pub(super) async fn receive(mut assembly: Assembly, body: Body) -> Result<ValueWriter, Problem> {
    if body.size_hint().lower() > ARCHIVE_BYTES_MAX {
        return Err(too_large());
    }
    let (chunks, mut waiting) = mpsc::channel::<Bytes>(CHUNKS_WAITING_MAX);
    let disk = runtime::task::spawn_blocking(move || {
        while let Some(chunk) = waiting.blocking_recv() {
            assembly.push(&chunk)?;
        }
        Ok::<Assembly, Problem>(assembly)
    });
    let mut body = body.into_data_stream();
    let mut size = 0;
    let mut cut = None;
    while let Some(chunk) = body.next().await {
        match chunk {
            Ok(chunk) => {
                size += chunk.len() as u64;
                if size > DISCARDED_BYTES_MAX {
                    break;
                }
                if size > ARCHIVE_BYTES_MAX {
                    cut = Some(too_large());
                } else {
                    // If the disk side has failed, its error is reported below. What comes is read
                    // all the same: a client that still sends would not see the answer.
                    chunks.send(chunk).await.ok();
                }
            }
            Err(error) => {
                let detail = format!("the push was cut: {error}");
                cut = Some(Problem::new(StatusCode::BAD_REQUEST, "push_cut", detail));
                break;
            }
        }
    }
    drop(chunks);
    let assembly = disk.await.map_err(|error| Problem::internal(error.to_string()))??;
    match cut {
        None => assembly.finish(),
        Some(problem) => Err(problem),
    }
}

pub(super) fn too_large() -> Problem {
    let gib = ARCHIVE_BYTES_MAX / (1024 * 1024 * 1024);
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "source_too_large",
        format!("the source is larger than {gib} GiB"),
    )
    .hint("leave out what is generated or data: list it in .cortexignore")
}

fn examine(
    mut upload: ValueWriter,
    forced: Option<&str>,
    name: &str,
) -> Result<(Plan, ValueFile), Problem> {
    let mut read = || -> std::io::Result<std::fs::File> {
        upload.file.seek(SeekFrom::Start(0))?;
        std::fs::File::open(&upload.path)
    };
    let file = read().map_err(|error| storage("the upload cannot be read", &error))?;
    let tree = archive::read(BufReader::new(file))?;
    let plan = plan_of(&tree, forced, name)?;
    Ok((plan, upload.finish()?))
}

fn plan_of(tree: &SourceTree, forced: Option<&str>, name: &str) -> Result<Plan, Problem> {
    let plan = plan_release(tree, forced, name).map_err(|error| {
        let code = match error {
            DetectError::Nothing(_) => "not_recognised",
            DetectError::UnknownFramework { .. } => "unknown_type",
            DetectError::Unusable { .. } => "unusable",
            _ => "invalid_file",
        };
        Problem::invalid(code, error.to_string())
    })?;
    check_balance(&plan.settings)?;
    Ok(plan)
}

/// Checks the balancing settings, which only the router understands and agents need not know.
fn check_balance(settings: &Settings) -> Result<(), Problem> {
    let invalid = |why| Problem::invalid("invalid_file", format!("{CORTEX_TOML}: {why}"));
    let name = settings.balance.escape_debug();
    let Some(strategy) = balance::strategy(&settings.balance) else {
        let names = balance::names();
        return Err(invalid(format!("balance: there is no '{name}'; use one of {names}")));
    };
    if settings.sticky.is_some() && !strategy.wants_key() {
        let why = format!(
            "sticky: balance '{name}' keeps nothing together; use '{STICKY_BALANCE}', or leave \
             balance out"
        );
        return Err(invalid(why));
    }
    Ok(())
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    runtime::task::spawn_blocking(work)
        .await
        .map_err(|error| Problem::internal(error.to_string()))?
}

async fn release(
    api: &Api,
    name: ApplicationName,
    (mut plan, file): (Plan, ValueFile),
    (caller, entry): (Caller, Underway),
    query: PushQuery,
) -> Result<(StatusCode, Json<Released>), Problem> {
    let _changing = api.changes.lock().await;
    let found = records::find(&*api.store, &name).await?;
    let created = found.is_none();
    let mut app = match found {
        Some(app) => {
            // Somebody may have made it while the archive came in.
            caller.check(&api.store, Right::Push, &name, app.spec.created_at).await?;
            app
        }
        None => records::begin(api, &name).await?,
    };
    // It is decided here, so that all nodes do the same with the release.
    if plan.manifest.isolation.is_none() {
        plan.recipe.isolation = isolation::of_platform(api).await?.0;
    }
    isolation::admit(api, &caller, &app, &mut plan.recipe).await?;
    let planned = (&plan.recipe, &mut plan.settings);
    let is_there = app.releases.iter().any(|release| release.source == file.hash);
    let new = (created, if is_there { 0 } else { file.size });
    let limited = team_limits::check_release(api, &caller, &app, new, planned).await?;
    if query.if_changed && is_serving(&app, &plan, &file) {
        let serving = app.serving().expect("checked by is_serving");
        let answer = Released { unchanged: true, ..releases::released(api, &app, serving) };
        return Ok((StatusCode::OK, Json(answer)));
    }
    let before = app.spec.clone();
    let (config, mut notes) =
        complete_config(api, &name, &plan.manifest, &plan.recipe.environment).await?;
    notes.extend(merge(api, &mut app, &plan.manifest).await?);
    ports::check_services(api, &app, &plan.recipe.ports, app.spec.port).await?;
    let id = releases::next_id(api, &app).await?;
    let note = line(query.note.as_deref().unwrap_or("push"));
    let mut changed = vec![app.change_to(&id, &note)];
    changed.extend(parts::of_spec(&before, &app.spec));
    entry.describe(&app, api.now(), changed).await?;
    records::write(&*api.store, TypedKey::Spec(name.clone()), &app.spec).await?;
    if created {
        caller.adopt(&api.store, &name).await?;
    }
    let source = TypedKey::Source(name.clone(), file.hash).key();
    let (hash, size) = (file.hash, file.size);
    api.store.set_file(source, file).await?;
    let anew = if query.rebuild { RebuildWhen::Always } else { RebuildWhen::AfterFailure };
    let build = builds::choose(api, &app, hash, &plan.recipe, &config, anew).await?;
    let draft = Draft {
        id,
        source: hash,
        source_bytes: size,
        recipe: plan.recipe,
        settings: plan.settings,
        build: build.id,
        note,
        revision: query.revision.as_deref().map(line),
        by: entry.by(),
        config,
    };
    let known = app.serving().map(|serving| serving.recipe.notes.clone()).unwrap_or_default();
    let release = releases::make(api, &mut app, draft).await?;
    let mut answer = Released { created, ..releases::released(api, &app, &release) };
    // What was said of the release that serves need not be said again.
    answer.notes.retain(|note| !known.contains(note));
    answer.notes.extend(isolation::remark(&app, &release));
    answer.notes.extend(build.note);
    answer.notes.extend(notes);
    answer.notes.extend(limited);
    Ok((StatusCode::CREATED, Json(answer)))
}

/// Returns what a client says of a push as it is kept: short, and harmless to a terminal.
fn line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(NOTE_CHARS_MAX).collect()
}

fn is_serving(app: &ApplicationRecords, plan: &Plan, file: &ValueFile) -> bool {
    let done = app
        .rollout
        .as_ref()
        .is_some_and(|one| one.phase == RolloutPhase::Done && one.serving == one.target);
    let mut recipe = plan.recipe.clone();
    add_persistent(&mut recipe.persist, &app.spec.persist);
    done && app.serving().is_some_and(|release| {
        // These say which application it is, whatever release of it serves.
        let mut settings = release.settings.clone();
        settings.health.domain = None;
        settings.application_created_at = None;
        settings.port = None;
        release.source == file.hash && release.recipe == recipe && settings == plan.settings
    })
}

/// Takes what the project's own files say of the application itself; commands win.
async fn merge(
    api: &Api,
    app: &mut ApplicationRecords,
    manifest: &Manifest,
) -> Result<Vec<String>, Problem> {
    let notes = domains::merge(api, app, &manifest.domains).await?;
    let given = app.spec.port_chosen || manifest.port.is_some();
    if ports::has_lost_port(api, app).await? {
        // The port is given anew below, or refused by the check of what was asked for.
        app.spec.port = app.spec.port.filter(|_| given);
        if let Some(port) = app.spec.port {
            ports::allot(api, &app.name, Some(port), &manifest.ports).await?;
        }
    }
    let changes = manifest.port.is_some() && manifest.port != app.spec.port;
    if !app.spec.port_chosen && changes {
        app.spec.port = ports::allot(api, &app.name, manifest.port, &manifest.ports).await?;
    }
    if app.spec.port.is_none() {
        app.spec.port = ports::allot(api, &app.name, None, &manifest.ports).await?;
    }
    Ok(notes)
}

/// Makes the secrets that `app.json` wants generated, and insists on the variables it requires.
async fn complete_config(
    api: &Api,
    name: &ApplicationName,
    manifest: &Manifest,
    environment: &ConfigVariables,
) -> Result<(ConfigVariables, Vec<String>), Problem> {
    let mut config = records::config(&*api.store, name).await?;
    let given = |config: &ConfigVariables, key: &String| {
        config.contains_key(key) || environment.contains_key(key)
    };
    let missing: Vec<&str> =
        manifest.required.iter().filter(|key| !given(&config, key)).map(String::as_str).collect();
    if !missing.is_empty() {
        let assignments: Vec<String> = missing.iter().map(|key| format!("{key}=…")).collect();
        return Err(Problem::invalid(
            "config_required",
            format!("app.json requires variables that are not set: {}", missing.join(", ")),
        )
        .hint(format!(
            "set them with `cortex config set {} -a {name}` (after `cortex apps create {name}` \
             where there is no application yet), then push again",
            assignments.join(" ")
        )));
    }
    let wanted: Vec<&String> = manifest.secrets.iter().filter(|key| !given(&config, key)).collect();
    let mut notes = Vec::new();
    if !wanted.is_empty() {
        for key in wanted {
            let secret = os::secret_file::random_hex(SECRET_BYTES)
                .map_err(|error| Problem::internal(format!("no random bytes: {error}")))?;
            config.insert(key.clone(), secret);
            notes.push(format!(
                "app.json: {key} was generated: `cortex config get {key} -a {name}`"
            ));
        }
        records::write(&*api.store, TypedKey::Config(name.clone()), &config).await?;
    }
    Ok((config, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_that_is_not_there_is_refused_with_those_that_are() {
        let plan = |text: &str| {
            let tree = SourceTree::from_pairs([(CORTEX_TOML, text), ("app.py", "")]);
            plan_of(&tree, None, "test").map_err(|problem| format!("{problem:?}"))
        };
        let error = plan("balance = 'dice'").unwrap_err();
        for expected in
            ["cortex.toml: balance: there is no 'dice'", "'least-loaded', 'round-robin'"]
        {
            assert!(error.contains(expected), "{error}");
        }
        let error = plan("balance = 'round-robin'\nsticky = 'address'").unwrap_err();
        assert!(error.contains("'round-robin' keeps nothing together"), "{error}");
        assert!(plan("sticky = 'cookie:id'").is_ok());
        for (name, _) in balance::STRATEGIES {
            assert!(plan(&format!("balance = '{name}'")).is_ok());
        }
    }
}
