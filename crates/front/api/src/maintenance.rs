//! Maintenance: an application is closed to its clients while its instances run on. Routers answer
//! in its place, by what the specification says.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use model::TypedKey;

use super::Shared;
use super::audit::Underway;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::undo::parts;
use api_types::maintenance::{MaintenanceAsked, MaintenanceShown};

pub async fn show(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<MaintenanceShown>, Problem> {
    Ok(Json(shown(&records::require(&*api.store, &app).await?)))
}

fn shown(app: &ApplicationRecords) -> MaintenanceShown {
    MaintenanceShown {
        application: app.name.to_string(),
        since: app.spec.maintenance.map(records::rfc3339),
    }
}

/// Closes or opens it; one that is closed already stays so since then.
pub async fn change(
    State(api): State<Shared>,
    Extension(entry): Extension<Underway>,
    Path(app): Path<String>,
    JsonBody(asked): JsonBody<MaintenanceAsked>,
) -> Result<Json<MaintenanceShown>, Problem> {
    let _changing = api.changes.lock().await;
    let mut app = records::require(&*api.store, &app).await?;
    let before = app.spec.clone();
    app.spec.maintenance = match asked.on {
        true => before.maintenance.or(Some(api.now())),
        false => None,
    };
    if app.spec != before {
        entry.describe(&app, api.now(), parts::of_spec(&before, &app.spec)).await?;
        records::write(&*api.store, TypedKey::Spec(app.name.clone()), &app.spec).await?;
    }
    Ok(Json(shown(&app)))
}
