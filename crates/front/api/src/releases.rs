//! Releases: how one is made from a push, a rollback or a change of variables, how many are kept,
//! and how they are listed. Making one ends with asking for its rollout; agents do the rest.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{Path, State};
use model::application::Settings;
use model::record::{RECORD_VERSION, Unknown};
use model::value::ContentHash;
use model::{BuildId, Fate, Key, Outcome, Recipe, Release, ReleaseId, Rollout, TypedKey};
use recipe_core::manifest;

use super::audit::By;
use super::problem::Problem;
use super::records::{self, ApplicationRecords, ConfigVariables};
use super::{Api, Shared, domains, nodes, ports};
use api_types::{ReleaseRow, Released};

/// The number of releases kept, enough to go back to last month's; older ones and their sources are
/// removed.
const RELEASES_KEPT: usize = 30;

/// A new release.
pub struct Draft {
    pub id: ReleaseId,
    pub source: ContentHash,
    pub source_bytes: u64,
    pub recipe: Recipe,
    pub settings: Settings,
    pub build: BuildId,
    pub note: String,
    pub revision: Option<String>,
    pub by: By,
    pub config: ConfigVariables,
}

impl Draft {
    /// Makes a draft of the same code, with this build.
    pub fn from_release(
        release: &Release,
        id: ReleaseId,
        build: BuildId,
        config: ConfigVariables,
        (note, by): (String, By),
    ) -> Draft {
        Draft {
            id,
            source: release.source,
            source_bytes: release.source_bytes,
            recipe: release.recipe.clone(),
            settings: release.settings.clone(),
            build,
            note,
            revision: release.revision.clone(),
            by,
            config,
        }
    }
}

/// Makes a release. The caller holds `Api::changes`. The rollout is written last: until then nobody
/// acts.
pub async fn make(
    api: &Api,
    app: &mut ApplicationRecords,
    mut draft: Draft,
) -> Result<Release, Problem> {
    manifest::add_persistent(&mut draft.recipe.persist, &app.spec.persist);
    draft.recipe.put_behind(app.spec.isolation.as_ref());
    let coordinator = nodes::coordinator(api, draft.recipe.wall()).await?;
    let mut rollout =
        app.rollout.clone().unwrap_or_else(|| Rollout::new(api.node.clone(), api.now()));
    let mut settings = draft.settings;
    settings.health.domain = domains::first(&app.spec);
    settings.application_created_at = Some(app.spec.created_at);
    settings.port = settings.port.or(app.spec.port);
    let release = Release {
        v: RECORD_VERSION,
        id: draft.id,
        source: draft.source,
        source_bytes: draft.source_bytes,
        build: Some(draft.build),
        recipe: draft.recipe,
        settings,
        created_at: api.now(),
        author: draft.by.author,
        note: draft.note,
        revision: draft.revision,
        replaces: rollout.serving.clone(),
        remark: draft.by.remark,
        takes_back: None,
        unknown: Unknown::new(),
    };
    let (store, id) = (&*api.store, release.id.clone());
    records::write(store, TypedKey::ConfigAt(app.name.clone(), id.clone()), &draft.config).await?;
    records::write(store, TypedKey::Release(app.name.clone(), id.clone()), &release).await?;
    rollout.request(id, coordinator, api.now());
    records::write(store, TypedKey::Rollout(app.name.clone()), &rollout).await?;
    app.rollout = Some(rollout);
    app.releases.push(release.clone());
    app.releases.sort_by(|a, b| a.id.cmp(&b.id));
    prune(api, app).await?;
    Ok(release)
}

/// Returns what the next release is called. The caller holds `Api::changes`.
pub async fn next_id(api: &Api, app: &ApplicationRecords) -> Result<ReleaseId, Problem> {
    let known = app.releases.iter().map(|release| release.id.number).max().unwrap_or(0);
    let next = agent::taking_back::next_number(&*api.store, &app.name, known).await;
    let number = next.map_err(|error| Problem::internal(format!("{error:#}")))?;
    Ok(ReleaseId { number, node: api.node.clone() })
}

/// Removes the oldest releases beyond the limit, but never one that serves or is being rolled out.
async fn prune(api: &Api, app: &mut ApplicationRecords) -> Result<(), Problem> {
    let excess = app.releases.len().saturating_sub(RELEASES_KEPT);
    let rollout = app.rollout.as_ref();
    let in_use: BTreeSet<ReleaseId> = rollout
        .into_iter()
        .flat_map(|rollout| [rollout.serving.clone(), rollout.target.clone()])
        .flatten()
        .collect();
    let builds: BTreeSet<BuildId> =
        in_use.iter().filter_map(|id| app.release(id)).map(Release::build_id).collect();
    let removed: BTreeSet<ReleaseId> = app.releases[..excess]
        .iter()
        .map(|release| release.id.clone())
        .filter(|id| !in_use.contains(id))
        .collect();
    app.releases.retain(|release| !removed.contains(&release.id));
    let sources: BTreeSet<ContentHash> =
        app.releases.iter().map(|release| release.source).collect();
    let is_stale = |key: &Key| match TypedKey::parse(key) {
        Some(TypedKey::Release(_, id) | TypedKey::ConfigAt(_, id) | TypedKey::Outcome(_, id)) => {
            removed.contains(&id)
        }
        Some(TypedKey::Source(_, hash)) => !sources.contains(&hash),
        // The nodes that ran an older release keep its build, and offer it again when it is wanted.
        Some(TypedKey::Artefact(_, build, ..)) => !builds.contains(&build),
        _ => false,
    };
    let keys = api.store.keys(&model::key::application_prefix(&app.name)).await?;
    for key in keys.into_iter().filter(is_stale) {
        api.store.delete(key).await?;
    }
    Ok(())
}

pub fn released(api: &Api, app: &ApplicationRecords, release: &Release) -> Released {
    Released {
        application: app.name.to_string(),
        release: app.label(&release.id),
        id: release.id.to_string(),
        unchanged: false,
        created: false,
        framework: release.recipe.framework.clone(),
        decided_by: release.recipe.decided_by.clone(),
        notes: release.recipe.notes.clone(),
        url: app.url(&api.url_host()),
        ports: ports::services(api, &app.name, release),
    }
}

/// Lists the releases, newest first.
pub async fn list(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<Vec<ReleaseRow>>, Problem> {
    let app = records::require(&*api.store, &app).await?;
    let state = |id: &ReleaseId| match (&app.rollout, app.outcomes.get(id)) {
        (Some(rollout), _) if rollout.serving.as_ref() == Some(id) => "serving",
        (_, Some(Outcome { fate: Fate::Failed, .. })) => "failed",
        (_, Some(Outcome { fate: Fate::TakenBack, .. })) => "taken back",
        (Some(rollout), None) if rollout.target.as_ref() == Some(id) => {
            records::phase_word(rollout.phase)
        }
        _ => "",
    };
    let rows = app.releases.iter().rev().map(|release| ReleaseRow {
        release: app.label(&release.id),
        id: release.id.to_string(),
        note: release.note.clone(),
        remark: release.remark.clone(),
        revision: release.revision.clone(),
        author: release.author.clone(),
        created_at: records::rfc3339(release.created_at),
        framework: release.recipe.framework.clone(),
        build: release.build_id().to_string(),
        source: release.source.to_string(),
        source_bytes: release.source_bytes,
        state: state(&release.id).into(),
        why: app.outcomes.get(&release.id).map(|outcome| outcome.why.clone()),
    });
    Ok(Json(rows.collect()))
}

/// Finds a release by `v3`, `3` or `v3.NODE`.
pub fn resolve<'a>(app: &'a ApplicationRecords, text: &str) -> Result<&'a Release, Problem> {
    let wanted = text.strip_prefix('v').unwrap_or(text);
    let found: Vec<&Release> = app
        .releases
        .iter()
        .filter(|one| {
            one.id.number.to_string() == wanted
                || one.id.to_string().strip_prefix('v') == Some(wanted)
        })
        .collect();
    match found[..] {
        [release] => Ok(release),
        [] => Err(Problem::missing(
            "no_release",
            format!("{} has no release '{}'", app.name, text.escape_debug()),
        )
        .hint(format!("`cortex releases -a {}` lists those there are", app.name))),
        _ => {
            let names: Vec<String> = found.iter().map(|one| one.id.to_string()).collect();
            Err(Problem::conflict(
                "ambiguous_release",
                format!("'{text}' means several releases: {}", names.join(", ")),
            )
            .hint("write one of them in full"))
        }
    }
}
