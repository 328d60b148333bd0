"""Transfer through phones (Wu et al., 2023): data whose parties have different modalities, bridged by phones."""
