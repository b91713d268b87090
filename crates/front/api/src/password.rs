//! The password that an application asks its clients for. Routers ask for it in front of the
//! application, by what the specification keeps of it.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use model::TypedKey;
use model::application::Password;
use model::node::Feature;
use router_core::wall::{self, PASSWORD_BYTES_MAX, PASSWORD_BYTES_MIN, SALT_BYTES};

use super::audit::Underway;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::undo::parts;
use super::{Api, Shared, nodes};
use api_types::maintenance::{PasswordAsked, PasswordShown};

pub async fn show(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<PasswordShown>, Problem> {
    Ok(Json(shown(&records::require(&*api.store, &app).await?)))
}

fn shown(app: &ApplicationRecords) -> PasswordShown {
    let since = app.spec.password.as_ref().map(|password| records::rfc3339(password.since));
    PasswordShown { application: app.name.to_string(), since }
}

/// Has clients asked for another password, or for none. The one from before is kept as the present
/// one is, so that the change can be taken back.
pub async fn change(
    State(api): State<Shared>,
    Extension(entry): Extension<Underway>,
    Path(app): Path<String>,
    JsonBody(asked): JsonBody<PasswordAsked>,
) -> Result<Json<PasswordShown>, Problem> {
    let known = records::require(&*api.store, &app).await?;
    let password = match asked.password {
        None => None,
        Some(text) => {
            check_asked_everywhere(&api, &known).await?;
            Some(protect(&api, text.expose().to_owned()).await?)
        }
    };
    let _changing = api.changes.lock().await;
    let mut app = records::require(&*api.store, &app).await?;
    let before = app.spec.clone();
    if before.password != password {
        app.spec.password_before = std::mem::replace(&mut app.spec.password, password);
        entry.describe(&app, api.now(), parts::of_spec(&before, &app.spec)).await?;
        records::write(&*api.store, TypedKey::Spec(app.name.clone()), &app.spec).await?;
    }
    Ok(Json(shown(&app)))
}

/// Checks that no node would let clients in without asking.
pub async fn check_asked_everywhere(api: &Api, app: &ApplicationRecords) -> Result<(), Problem> {
    let harm = format!("would let everybody in to '{}'", app.name);
    let instead = "nothing was changed";
    nodes::check_all_know(api, Feature::Password, &harm, instead).await
}

async fn protect(api: &Api, text: String) -> Result<Password, Problem> {
    let bytes = text.len();
    if !(PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX).contains(&bytes) {
        let detail = format!(
            "a password has {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes, and this one {bytes}"
        );
        let hint = "`cortex password set --generate` makes one";
        return Err(Problem::invalid("invalid_password", detail).hint(hint));
    }
    if text.chars().any(char::is_control) {
        let detail = "the password has a control character in it, which nobody can type";
        return Err(Problem::invalid("invalid_password", detail));
    }
    let mut salt = [0; SALT_BYTES];
    let filled = rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty());
    if filled.ok() != Some(SALT_BYTES) {
        return Err(Problem::internal("the system gives no random bytes"));
    }
    let since = api.now();
    let protected = move || wall::protect(&text, &salt, since);
    let protected = runtime::task::spawn_blocking(protected).await;
    protected.map_err(|error| Problem::internal(error.to_string()))
}
