from django.db import models


class Entry(models.Model):
    name = models.CharField(max_length=80)
    signed_at = models.DateTimeField(auto_now_add=True)
